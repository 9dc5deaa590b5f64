"""One message and one dead letter, as operators see them, on both stores."""

from datetime import timedelta

from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import Dead, NewRow, Settlement
from tests.backends import Backend


async def test_a_message_is_shown_with_its_body_decoded(backend: Backend) -> None:
    headers = {"content-type": "application/json", "correlation_id": "c-1", "tenant": "a"}
    row = NewRow("orders", b'{"id": 1}', headers, key="k", activate_in=timedelta(hours=1))
    [row_id] = await backend.insert(row)
    message = await OutboxOperations.on_store(backend.store).message(row_id)
    assert message is not None
    assert (message.id, message.queue, message.key, message.state) == (row_id, "orders", "k", "delayed")
    assert (message.body.data, message.correlation_id, message.headers) == ({"id": 1}, "c-1", headers)
    assert message.body.pretty() == '{\n  "id": 1\n}'
    assert message.holder is None
    assert await OutboxOperations.on_store(backend.store).message(row_id + 1) is None


async def test_a_message_in_flight_names_its_holder(backend: Backend) -> None:
    await backend.insert(NewRow("orders", b"\xff\x00"))
    [row] = (await backend.claim("orders")).rows
    message = await OutboxOperations.on_store(backend.store).message(row.id)
    assert message is not None
    assert (message.state, message.holder) == ("in_flight", "unknown")  # a store that listens has a name
    assert (message.body.text, message.body.pretty()) == (None, "ff 00")


async def test_a_dead_letter_is_shown_with_its_exception(backend: Backend) -> None:
    [row_id] = await backend.insert(NewRow("orders", b"plain", {"content-type": "text/plain"}))
    [row] = (await backend.claim("orders")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Dead("retry_terminal", "ValueError: no", 3))])
    operations = OutboxOperations.on_store(backend.store)
    letter = await operations.dead_letter(1)
    assert letter is not None
    assert (letter.original_id, letter.reason, letter.exception) == (row_id, "retry_terminal", "ValueError: no")
    assert (letter.body.data, letter.attempts) == ("plain", 3)
    assert await operations.dead_letter(row_id + 100) is None
