"""What a relay says of a row, and what an inbox makes of it: the two halves fit."""

import pytest
from faststream.redis import RedisBroker, TestRedisBroker

from faststream_outbox.annotations import InboxSession
from faststream_outbox.envelope import relay_headers
from faststream_outbox.storage import NewRow, OutboxRow
from tests.backends import Backend
from tests.inbox.inbox_app import InboxApp


async def inserted(backend: Backend, *keys: str | None) -> list[OutboxRow]:
    await backend.insert(*(NewRow("q", b"", key=key) for key in keys))
    return sorted(await backend.rows(), key=lambda row: row.id)


async def test_the_headers_of_a_row(backend: Backend) -> None:
    [row, keyed] = await inserted(backend, None, "42")
    assert relay_headers(row, source="shop") == {
        "outbox_id": f"shop/{row.id}-{row.created_epoch:.6f}",
        "outbox_source": "shop",
    }
    assert relay_headers(keyed, source="shop") == {
        "outbox_id": f"shop/{keyed.id}-{keyed.created_epoch:.6f}",
        "outbox_source": "shop",
        "outbox_key": "42",
        "outbox_sequence": str(keyed.id),
    }


async def test_numbers_of_a_key_grow_with_its_commits(backend: Backend) -> None:
    for _ in range(3):
        rows = await inserted(backend, "a", "b")
    numbers = [int(relay_headers(row, source="shop")["outbox_sequence"]) for row in rows if row.entity_key == "a"]
    assert len(numbers) == 3
    assert numbers == sorted(set(numbers))


async def test_a_row_has_one_id_however_it_is_read(backend: Backend) -> None:
    [read] = await inserted(backend, None)
    [claimed] = (await backend.claim("q")).rows
    [again] = await backend.rows()
    assert len({relay_headers(row, source="shop")["outbox_id"] for row in (read, claimed, again)}) == 1


@pytest.mark.parametrize(("source", "error"), [("", ValueError), ("a\x00", ValueError), (None, TypeError)])
async def test_a_source_is_a_name(backend: Backend, source: str, error: type[Exception]) -> None:
    [row] = await inserted(backend, None)
    with pytest.raises(error, match="source"):
        relay_headers(row, source=source)


async def test_rows_of_two_outboxes_with_one_number(app: InboxApp) -> None:
    """Two services, whose first rows go to one topic, each of them twice."""
    [row] = await inserted(app.postgres, None)
    broker = RedisBroker(middlewares=[app.inbox()])

    @broker.subscriber(stream="orders")
    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    async with TestRedisBroker(broker):
        for source in ("shop", "warehouse") * 2:
            await broker.publish(source, stream="orders", headers=relay_headers(row, source=source))
    assert await app.written() == ["shop", "warehouse"]
