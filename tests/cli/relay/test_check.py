"""A relay is checked, and relays nothing."""

import pytest

from faststream_outbox.embedded import Database
from tests.backends import PostgresBackend
from tests.cli.programs import password_of, run
from tests.cli.relay.rows import publish
from tests.servers.redis import Redis


async def test_all_is_well(outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis) -> None:
    await publish(outbox, range(3))
    options = ("--to", redis_server.url, "--route", "orders=s", "--dlq-table", "outbox_dlq", "--check")
    done = run("relay", *options, OUTBOX_DSN=outbox_postgres.dsn)
    assert done.stdout.splitlines() == [
        f"ok    1 route to {redis_server.url}",
        "ok    the tables have the right columns",
        "ok    the broker answers",
        "ok    stream 's' is not there yet: Redis creates it with the first message",
    ], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert len(await outbox.rows()) == 3


async def test_all_is_wrong(outbox_postgres: Database) -> None:
    options = ("--to", "redis://relay:top-secret@127.0.0.1:1", "--route", "orders=s", "--check")
    done = run("relay", *options, OUTBOX_DSN=outbox_postgres.dsn)
    assert (done.returncode, done.stderr) == (1, "")
    _, tables, broker = done.stdout.splitlines()
    assert tables.startswith('wrong The outbox "outbox" is not in the database: create it')
    assert broker.startswith("wrong redis://relay:***@127.0.0.1:1 ")
    assert "top-secret" not in done.stdout
    assert password_of(outbox_postgres) not in done.stdout


async def test_a_column_is_missing(outbox: PostgresBackend, outbox_postgres: Database, redis_server: Redis) -> None:
    await outbox.run("ALTER TABLE outbox_dlq DROP COLUMN last_exception")
    options = ("--to", redis_server.url, "--route", "orders=s", "--dlq-table", "outbox_dlq", "--check")
    done = run("relay", *options, OUTBOX_DSN=outbox_postgres.dsn)
    assert done.returncode == 1
    assert "wrong" in done.stdout
    assert "last_exception" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--ordering", "hash-shards"), "16 shards, which the nodes share by the table of shards"),
        (("--ordering", "hash-shards", "--own-shards", "1/4"), "this node has 4 of 16 shards: 1, 5, 9, 13"),
    ],
    ids=["shared", "its own"],
)
@pytest.mark.usefixtures("outbox")
async def test_the_shards(options: tuple[str, ...], line: str, outbox_postgres: Database, redis_server: Redis) -> None:
    done = run("relay", "--to", redis_server.url, "--route", "a=s", *options, "--check", OUTBOX_DSN=outbox_postgres.dsn)
    assert done.stdout.splitlines()[1] == f"ok    {line}", done.stderr
    assert done.returncode == 0
