"""The addresses of the project."""

from django.contrib import admin
from django.urls import path

from tests.django.shop.views import place_order, place_order_async

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", place_order),
    path("async-orders/", place_order_async),
]
