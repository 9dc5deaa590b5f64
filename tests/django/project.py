"""A real Django project and its `manage.py`; environment variables name the database."""

import os
import sys
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line


def configure(**more: Any) -> None:
    """Configure Django once, with the database of the environment."""
    if not settings.configured:
        settings.configure(
            SECRET_KEY="of a test",  # noqa: S106 - not a secret
            ALLOWED_HOSTS=["testserver"],
            ROOT_URLCONF="tests.django.urls",
            USE_TZ=True,
            DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                    "HOST": os.environ.get("PGHOST", ""),
                    "PORT": os.environ.get("PGPORT", ""),
                    "NAME": os.environ.get("PGDATABASE", ""),
                    "USER": os.environ.get("PGUSER", ""),
                    "PASSWORD": os.environ.get("PGPASSWORD", ""),
                    **more,
                }
            },
            INSTALLED_APPS=[
                "django.contrib.admin",
                "django.contrib.auth",
                "django.contrib.contenttypes",
                "django.contrib.messages",
                "django.contrib.sessions",
                "faststream_outbox.django",
                "tests.django.shop",
            ],
            MIDDLEWARE=[
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware",
            ],
            TEMPLATES=[
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "APP_DIRS": True,
                    "OPTIONS": {
                        "context_processors": [
                            "django.template.context_processors.request",
                            "django.contrib.auth.context_processors.auth",
                            "django.contrib.messages.context_processors.messages",
                        ]
                    },
                }
            ],
            # The fastest: nobody guesses these passwords.
            PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        )
        django.setup()


if __name__ == "__main__":
    configure()
    execute_from_command_line(sys.argv)
