"""Reads of large rows: no more than some megabytes at a time, however many rows a page or a slice may have."""

import asyncio
from typing import Any

import pytest

from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.operating import reads
from tests.backends import PostgresBackend

SIZE, NUMBER = 3_000, 10
# A page has two rows, and the one that goes beyond.
MOST = 2 * SIZE + 500


@pytest.fixture
def driver() -> str:
    return "asyncpg"


@pytest.fixture
async def large(postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> OutboxOperations:
    monkeypatch.setattr(reads, "_PAGE_BYTES", MOST)
    return OutboxOperations(postgres.engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table)


async def insert(postgres: PostgresBackend) -> list[int]:
    keys = ["a", None, "b", None, "a", "a", None, "b", "b", "c"]
    rows = [NewRow("q", bytes(SIZE), key=key, headers={"correlation_id": "c"}) for key in keys]
    return await postgres.insert(*rows)


async def bury(postgres: PostgresBackend) -> None:
    columns = "original_id, queue, payload, headers, created_at, attempts_count, deliveries_count, failure_reason"
    await postgres.run(f"""INSERT INTO outbox_dlq ({columns})
      SELECT n, 'q', decode(repeat('00', {SIZE}), 'hex'), '{{"correlation_id": "c"}}', now(), 1, 1, 'rejected'
        FROM generate_series(1, {NUMBER}) n""")


async def pages(read: Any) -> list[list[int]]:
    found, after = [], None
    while True:
        page = await read(after)
        found.append([each.id for each in page.items])
        if page.after is None:
            return found
        after = page.after


async def test_a_page_of_large_messages_is_short_and_the_next_one_goes_on(
    postgres: PostgresBackend, large: OutboxOperations
) -> None:
    ids = await insert(postgres)
    found = await pages(lambda after: large.messages(after=after))
    assert [each for page in found for each in page] == ids
    assert max(map(len, found)) == 3


async def test_a_page_of_large_dead_letters_is_short_and_the_next_one_goes_on(
    postgres: PostgresBackend, large: OutboxOperations
) -> None:
    await bury(postgres)
    found = await pages(lambda after: large.dead_letters(after=after))
    assert sorted(each for page in found for each in page) == list(range(1, NUMBER + 1))
    assert max(map(len, found)) == 3


async def test_a_search_says_that_large_messages_were_left_out(
    postgres: PostgresBackend, large: OutboxOperations
) -> None:
    await insert(postgres)
    found = await large.find(correlation_id="c")
    assert len(found.messages) == 3
    assert not found.complete


async def test_an_export_reads_large_dead_letters_in_parts_and_leaves_none_out(
    postgres: PostgresBackend, large: OutboxOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(postgres)
    read, parts = type(large._store.acts).read_dead_letters, []

    def watched(self: Any, session: Any, ids: Any) -> Any:
        parts.append(len(ids))
        return read(self, session, ids)

    monkeypatch.setattr(type(large._store.acts), "read_dead_letters", watched)
    letters = [each async for each in large.export(list(range(1, NUMBER + 1)))]
    assert [each["id"] for each in letters] == list(range(1, NUMBER + 1))
    assert parts == [3, 3, 3, 1]


async def test_a_tail_returns_large_messages_that_came_together(
    postgres: PostgresBackend, large: OutboxOperations
) -> None:
    tail = aiter(large.tail(interval=0.01))
    first = asyncio.ensure_future(anext(tail))
    await asyncio.sleep(0.05)
    ids = await insert(postgres)
    async with asyncio.timeout(20):
        found = [(await first).id, *[(await anext(tail)).id for _ in range(NUMBER - 1)]]
    assert found == ids
