"""`manage.py outbox …`: the program `faststream-outbox` on the database of Django's settings."""

import argparse
import os
import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.connection import ConnectionDoesNotExist

from faststream_outbox.cli import main
from faststream_outbox.django.database import database_url


class Command(BaseCommand):
    """Passes its arguments on, with the connection."""

    help = (
        "Operate the outbox: stats, queues, messages, keys, dlq, timers, audit, doctor, schema, relay. "
        "Options of Django, such as --settings, stand before these words."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what follows as it is."""
        parser.add_argument("--database", help="The alias of the database; by default that of the outbox.")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="What faststream-outbox takes, such as: stats")

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the program; it ends the process with its exit code."""
        try:
            url = database_url(options["database"]).set(drivername="postgresql")
        except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
            raise CommandError(f"{error} --database names an alias of DATABASES.") from error
        os.environ["OUTBOX_DSN"] = url.render_as_string(hide_password=False)
        sys.argv = ["manage.py outbox", *options["arguments"]]
        main()
