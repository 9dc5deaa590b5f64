"""What the root of the package exports, and what importing it does not import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import faststream_outbox
from faststream_outbox import annotations, relay, storage

# Packages that an extra installs, or that only a program needs.
OPTIONAL = [
    "aio_pika",
    "aiokafka",
    "alembic",
    "asyncpg",
    "confluent_kafka",
    "django",
    "fastapi",
    "nats",
    "prometheus_client",
    "psycopg",
    "pydantic_settings",
    "pytest",
    "redis",
    "rich",
    "typer",
]


@pytest.mark.parametrize(
    ("name", "same"),
    [("OutboxSession", annotations.OutboxSession), ("QueueStats", storage.QueueStats), ("Relay", relay.Relay)],
)
def test_the_root_exports(name: str, same: object) -> None:
    assert name in faststream_outbox.__all__
    assert getattr(faststream_outbox, name) is same


def test_every_exported_name_is_there_and_in_order() -> None:
    assert faststream_outbox.__all__ == sorted(faststream_outbox.__all__)
    assert [name for name in faststream_outbox.__all__ if not hasattr(faststream_outbox, name)] == []


def test_importing_the_root_imports_nothing_optional() -> None:
    program = "import sys, faststream_outbox; print(*(each for each in sys.argv[1:] if each in sys.modules))"
    command = [sys.executable, "-c", program, *OPTIONAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_nothing_unpickles() -> None:
    files = list(Path(faststream_outbox.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    unsafe = re.compile(
        r"^\s*(?:import|from) (?:\w+, )*(?:pickle|cPickle|dill|marshal|shelve|jsonpickle)\b", re.MULTILINE
    )
    assert [file.name for file in files if unsafe.search(file.read_text())] == []
