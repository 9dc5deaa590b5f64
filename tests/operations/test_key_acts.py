"""Acts on keys, on both stores: with an audit, and holding a key that has no message."""

from datetime import timedelta

import pytest

from faststream_outbox.operations import MessageFilter
from faststream_outbox.operations.acting import key_acts
from faststream_outbox.operations.acting.key_acts import KeyBusyError
from faststream_outbox.storage import NewRow
from tests.backends import Backend, PostgresBackend
from tests.operations.letters import operations_of
from tests.operations.test_message_acts import claim_run, free_rows


async def test_acts_on_a_key_are_in_the_audit(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(2)))
    operations = await operations_of(backend)
    assert await operations.park_key("q", "k", reason="stop", by="ann")
    assert not await operations.park_key("q", "k", reason="stop", by="ann")
    assert await operations.release_key("q", "k", reason="go", by="ann")
    assert await operations.retry_key("q", "k", reason="now", by="bob")
    assert await operations.skip_key("q", "k", reason="bad", by="bob") == 1
    assert not await operations.retry_key("q", "none", reason="now", by="bob")
    entries = (await operations.audit()).items
    assert [(entry.action, entry.by, entry.count) for entry in entries] == [
        ("skip_key", "bob", 1),
        ("retry_key", "bob", 1),
        ("release_key", "ann", 1),
        ("park_key", "ann", 1),
    ]
    assert all(entry.target == {"queue": "q", "key": "k"} for entry in entries)
    assert [letter.payload for letter in await backend.dead_letters()] == [b"0"]


@pytest.mark.parametrize("verb", ["retry_key", "skip_key"])
async def test_an_act_is_for_the_first_message_that_its_caller_has_seen(backend: Backend, verb: str) -> None:
    seen, other = await backend.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(2)))
    operations = await operations_of(backend)
    assert not await getattr(operations, verb)("q", "k", head=other, reason="broken")
    assert [row.id for row in await backend.rows()] == [seen, other]
    assert not (await operations.audit()).items
    assert await getattr(operations, verb)("q", "k", head=seen, reason="broken")


@pytest.mark.parametrize("verb", ["release_key", "retry_key", "skip_key"])
async def test_a_key_without_messages_is_held_until_it_is_released(backend: Backend, verb: str) -> None:
    operations = await operations_of(backend)
    held = await operations.hold_key("q", "k", reason="merging accounts")
    assert held is not None
    [later] = await backend.insert(NewRow("q", b"", key="k"))
    message = await operations.message(held)
    assert message is not None
    assert (message.state, message.last_failure, message.headers) == ("parked", "operator: merging accounts", {})
    assert await free_rows(backend) == []
    assert await operations.hold_key("q", "k", reason="again") is None  # it is parked already
    assert await getattr(operations, verb)("q", "k", reason="done")
    assert await free_rows(backend) == [later]
    assert await backend.dead_letters() == []
    actions = [entry.action for entry in (await operations.audit()).items]
    assert actions == [verb, "hold_key"]


async def test_a_key_with_a_free_message_is_held_at_it(backend: Backend) -> None:
    [head] = await backend.insert(NewRow("q", b"", key="k"))
    operations = await operations_of(backend)
    assert await operations.hold_key("q", "k", reason="stop") == head
    assert await free_rows(backend) == []
    assert await operations.release_key("q", "k", reason="go")
    assert await free_rows(backend) == [head]


async def test_a_key_in_flight_is_held_behind_what_is_handled(backend: Backend) -> None:
    [head] = await backend.insert(NewRow("q", b"", key="k"))
    run = await claim_run(backend)
    operations = await operations_of(backend)
    held = await operations.hold_key("q", "k", reason="stop")
    assert held is not None
    assert held > head
    assert await operations.hold_key("q", "k", reason="stop") == held
    async with backend.store.connect() as lane:
        await lane.release(run.rows)
    assert await operations.discard(head, reason="done")
    await backend.insert(NewRow("q", b"", key="k"))
    assert await free_rows(backend) == []


async def test_a_hold_behind_what_is_handled_can_be_released_at_once(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", key="k"))
    await claim_run(backend)
    operations = await operations_of(backend)
    await operations.hold_key("q", "k", reason="stop")
    assert await operations.release_key("q", "k", reason="go")
    assert not await operations.release_key("q", "k", reason="go")
    assert len(await backend.rows()) == 1


async def test_no_act_on_messages_touches_the_row_that_holds_a_key(backend: Backend) -> None:
    operations = await operations_of(backend)
    held = await operations.hold_key("q", "k", reason="stop")
    assert held is not None
    selection = await operations.select(MessageFilter(queue="q"))
    discarded = await operations.discard(selection, reason="all")
    assert (discarded.done, discarded.skipped) == (0, {held: "it holds its key: release the key"})
    assert (await operations.deliver_now(selection, reason="all")).done == 0
    if isinstance(backend, PostgresBackend):
        assert (await operations.move(selection, "other", reason="all")).done == 0
    assert await free_rows(backend) == []


async def test_a_key_that_a_transaction_publishes_to_cannot_be_held(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_acts, "_PATIENCE", 0.1)
    operations = await operations_of(postgres)
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("q", b"", key="k"))
        with pytest.raises(KeyBusyError, match="the key 'k' of the queue 'q'"):
            await operations.hold_key("q", "k", reason="stop")
    assert await operations.hold_key("q", "k", reason="stop") == 1


async def test_a_hold_is_part_of_the_callers_transaction(postgres: PostgresBackend) -> None:
    operations = await operations_of(postgres)
    async with postgres.sessions() as session:
        assert await operations.hold_key("q", "k", reason="stop", session=session)
        await session.rollback()
    assert await postgres.rows() == []
    assert (await operations.audit()).items == []


async def test_timers_are_cancelled_and_fired(backend: Backend) -> None:
    late = timedelta(hours=1)
    await backend.insert(*(NewRow("q", name.encode(), timer_id=name, activate_in=late) for name in ("a", "b")))
    operations = await operations_of(backend)
    assert await operations.cancel_timer("q", "a", reason="paid")
    assert not await operations.cancel_timer("q", "a", reason="paid")
    assert await operations.fire_timer("q", "b", reason="asked for")
    assert not await operations.fire_timer("q", "b", reason="asked for")
    assert not await operations.fire_timer("q", "none", reason="asked for")
    assert [row.payload for row in (await backend.claim("q")).rows] == [b"b"]
    entries = (await operations.audit()).items
    assert [(entry.action, entry.target["timer_id"]) for entry in entries] == [
        ("fire_timer", "b"),
        ("cancel_timer", "a"),
    ]
