"""The inbox's table: as it is defined, created and validated."""

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox import Inbox, make_inbox_table
from faststream_outbox.storage.postgres.inbox import InboxStore
from tests.inbox.inbox_app import InboxApp


async def test_as_it_stands_in_the_database(app: InboxApp) -> None:
    columns = await app.postgres.run(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 'outbox_inbox'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns == [
        ("consumer", "character varying(255)", True),
        ("message_id", "text", True),
        ("seen_at", "timestamp with time zone", True),
    ]
    indexes = await app.postgres.run(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'outbox_inbox'::regclass ORDER BY 1"
    )
    assert indexes == [
        ("CREATE INDEX outbox_inbox_seen_idx ON public.outbox_inbox USING btree (consumer, seen_at)",),
        ("CREATE UNIQUE INDEX outbox_inbox_pkey ON public.outbox_inbox USING btree (consumer, message_id)",),
    ]


async def test_the_longest_names_fit_an_index_entry(app: InboxApp) -> None:
    # Four bytes each, and no two alike, so that nothing is compressed away.
    consumer = "".join(chr(0x10000 + number * 7) for number in range(255))
    message_id = "".join(chr(0x20000 + number * 11) for number in range(256))
    store = InboxStore(app.engine, app.inbox_table)
    transaction = await store.begin(consumer, message_id)
    assert transaction is not None
    await transaction.end()
    assert await store.begin(consumer, message_id) is None


@pytest.mark.parametrize(
    ("schema", "name"), [("app", "inbox"), ("My Schema", "100% $1 :x"), (None, 'quo"ted'), (None, "select")]
)
async def test_any_name_that_postgres_takes(engine: AsyncEngine, schema: str | None, name: str) -> None:
    metadata = MetaData()
    table = make_inbox_table(metadata, name, schema=schema)
    async with engine.begin() as connection:
        if schema:
            await connection.execute(text(f'CREATE SCHEMA "{schema}"'))
        await connection.run_sync(metadata.create_all)
    store = InboxStore(engine, table)
    transaction = await store.begin("billing", "1")
    assert transaction is not None
    await transaction.end()
    assert await store.begin("billing", "1") is None
    inbox = Inbox(engine, table=table, consumer="billing")
    assert await inbox.clean() == 0
    await inbox.validate_schema()


@pytest.mark.parametrize(
    ("name", "words"), [("x" * 55, "x_seen_idx' is 64 bytes long"), ("x" * 64, "table name"), ("", "empty")]
)
def test_names_that_postgres_would_cut(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_inbox_table(MetaData(), name)


async def test_validation_lists_what_is_missing(app: InboxApp) -> None:
    inbox = app.inbox()
    await inbox.validate_schema()
    await app.postgres.run("DROP INDEX outbox_inbox_seen_idx")
    await app.postgres.run("ALTER TABLE outbox_inbox DROP CONSTRAINT outbox_inbox_pkey")
    await app.postgres.run("ALTER TABLE outbox_inbox ALTER seen_at DROP DEFAULT")
    with pytest.raises(RuntimeError) as raised:
        await inbox.validate_schema()
    for words in ("primary key", "default of column seen_at", "consumer, seen_at"):
        assert words in str(raised.value)
    await app.postgres.run("DROP TABLE outbox_inbox")
    with pytest.raises(RuntimeError, match="table outbox_inbox is missing"):
        await inbox.validate_schema()
