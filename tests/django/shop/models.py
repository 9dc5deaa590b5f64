"""The model that messages are about."""

from django.db import models


class Order(models.Model):
    """One order."""

    product = models.TextField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return str(self.product)
