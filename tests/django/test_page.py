"""`docs/django.md`, followed file by file in a project that `startproject` makes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from tests.django.conftest import environment

ROOT = Path(__file__).parents[2]
FILES = re.findall(
    r'^```python title="([\w.]+)"\n(.*?)^```', (ROOT / "docs" / "django.md").read_text(), re.DOTALL | re.MULTILINE
)
DATABASE = """
import os
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "HOST": os.environ["PGHOST"],
                         "PORT": os.environ["PGPORT"], "NAME": os.environ["PGDATABASE"],
                         "USER": os.environ["PGUSER"], "PASSWORD": os.environ["PGPASSWORD"]}}
INSTALLED_APPS += ["shop"]
ALLOWED_HOSTS = ["testserver"]
"""
URLS = """
from django.contrib import admin
from django.urls import path
from shop import async_views, views
urlpatterns = [path("admin/", admin.site.urls), path("a", views.place_order), path("b", async_views.place_order)]
"""
MODELS = """
from django.db import models
class Order(models.Model):
    product = models.TextField()
"""
REQUESTS = """
import asyncio
from django.core.management import call_command
call_command("check", databases=["default"])
call_command("makemigrations", check=True, verbosity=0)
from django.test import AsyncClient, Client
print(Client().post("/a", {"product": "tea"}).json(), asyncio.run(AsyncClient().post("/b", {"product": "jam"})).json())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new project with the files of the page."""
    subprocess.run(
        [sys.executable, "-m", "django", "startproject", "shop", str(tmp_path)], check=True, timeout=60, env=os.environ
    )
    shop = tmp_path / "shop"
    with (shop / "settings.py").open("a") as settings:
        settings.write(DATABASE)
        settings.writelines(block for name, block in FILES if name == "settings.py")
    for name, block in [("urls.py", URLS), ("models.py", MODELS), *FILES]:
        if name != "settings.py":
            (shop / name).write_text(block)
    return tmp_path


@pytest.mark.timeout(400)  # seven processes that import Django or FastStream
def test_the_page_works_as_it_is_printed(folder: Path, outbox_postgres: Database) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "DJANGO_"))}
    own |= environment(outbox_postgres) | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}

    def manage(*arguments: str, given: str = "") -> str:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=folder, env=own, input=given, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    manage("makemigrations", "shop")
    manage("migrate")
    assert manage("shell", "-v", "0", "-c", REQUESTS).splitlines()[-1] == "{'id': 1} {'id': 2}"
    assert "orders" in manage("outbox", "stats", "-o", "json")
    worker = subprocess.Popen(
        [sys.executable, "-m", "faststream", "run", "shop.worker:app"],
        cwd=folder,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert worker.stdout is not None
        packed = (line.strip() for line in worker.stdout if line.startswith("packing"))
        assert {next(packed), next(packed)} == {"packing tea", "packing jam"}
    finally:
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=60)
