"""`manage.py outbox …`: the program on the database of the settings, as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.db import transaction

from faststream_outbox.django import publish
from faststream_outbox.embedded import Database
from tests.django.conftest import environment

ROOT = Path(__file__).parents[2]


def manage(database: Database, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.django.project", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        | environment(database),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_program_gets_the_database_of_the_settings(project: Any, migrated: Database) -> None:
    del project
    with transaction.atomic():
        publish({"id": 1}, queue="orders", key="k")
    done = manage(migrated, "outbox", "messages", "list", "-o", "jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    [message] = map(json.loads, done.stdout.splitlines())
    assert (message["queue"], message["key"]) == ("orders", "k")


def test_its_exit_code_and_its_help_are_those_of_the_program(project: Any, migrated: Database) -> None:
    del project
    checked = manage(migrated, "outbox", "schema", "check")
    assert (checked.returncode, checked.stdout) == (0, "The tables have what this version needs.\n")
    wrong = manage(migrated, "outbox", "dlq", "replay", "--all", "--no-such-option")
    assert wrong.returncode == 2
    assert "--no-such-option" in wrong.stderr


def test_options_of_django_stand_before_those_of_the_program(project: Any, migrated: Database) -> None:
    del project
    done = manage(migrated, "outbox", "--database", "default", "--traceback", "stats", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "stand before these words" in " ".join(manage(migrated, "outbox", "--help").stdout.split())


def test_an_alias_that_does_not_exist_is_named(project: Any, migrated: Database) -> None:
    del project
    done = manage(migrated, "outbox", "--database", "nope", "stats")
    assert (done.returncode, done.stderr) == (
        1,
        "CommandError: The connection 'nope' doesn't exist. --database names an alias of DATABASES.\n",
    )
