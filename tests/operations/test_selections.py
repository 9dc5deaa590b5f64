"""Selections: what they find, what they freeze, and that they can be passed on as JSON."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from faststream_outbox.operations import Count, DeadLetterFilter, MessageFilter, OutboxOperations, Selection
from faststream_outbox.operations.views import DeadLetter, Message
from faststream_outbox.storage import NewRow
from tests.backends import Backend, PostgresBackend
from tests.operations.letters import bury


def _operations(backend: Backend) -> OutboxOperations:
    return OutboxOperations.on_store(backend.store)


async def test_a_selection_counts_its_rows_and_shows_the_first(backend: Backend) -> None:
    ids = await backend.insert(*(NewRow("orders", b"%d" % n) for n in range(12)), NewRow("other", b""))
    selection = await _operations(backend).select(MessageFilter(queue="orders"))
    assert (selection.kind, selection.count, selection.upper_id) == ("messages", Count(12), ids[-1])
    assert [message.id for message in selection.sample] == ids[:10]
    assert all(isinstance(message, Message) for message in selection.sample)


async def test_a_selection_of_dead_letters_is_found_by_queue_reason_and_exception(backend: Backend) -> None:
    await bury(backend, NewRow("orders", b"1"), NewRow("orders", b"2"), exception="app.errors.NoStock: none")
    await bury(backend, NewRow("orders", b"3"), exception="ValueError: no")
    await bury(backend, NewRow("mails", b"4"), reason="max_deliveries", exception=None)
    operations = _operations(backend)
    for where, bodies in (
        (DeadLetterFilter(), [b"1", b"2", b"3", b"4"]),
        (DeadLetterFilter(queue="orders"), [b"1", b"2", b"3"]),
        (DeadLetterFilter(exception_type="NoStock"), [b"1", b"2"]),
        (DeadLetterFilter(queue="orders", exception_type="app.errors.NoStock"), [b"1", b"2"]),
        (DeadLetterFilter(exception_type="Stock"), []),
        (DeadLetterFilter(reason="max_deliveries"), [b"4"]),
        (DeadLetterFilter(queue="orders", failed_before=datetime.now(UTC) - timedelta(hours=1)), []),
        (DeadLetterFilter(queue="orders", failed_after=datetime.now(UTC) - timedelta(hours=1)), [b"1", b"2", b"3"]),
    ):
        selection = await operations.select(where)
        assert sorted(letter.body.raw for letter in selection.sample) == bodies
        assert selection.count == Count(len(bodies))
        assert all(isinstance(letter, DeadLetter) for letter in selection.sample)


async def test_messages_are_found_by_all_that_a_filter_can_give(backend: Backend) -> None:
    headers = {"correlation_id": "c-1", "tenant": "a", "number": 7}
    [plain] = await backend.insert(NewRow("orders", b"", headers))
    [keyed] = await backend.insert(NewRow("orders", b"", key="k"))
    [timer] = await backend.insert(NewRow("orders", b"", timer_id="t", activate_in=timedelta(hours=1)))
    [other] = await backend.insert(NewRow("other", b"", key="k", activate_in=timedelta(hours=1)))
    now = datetime.now(UTC)
    wanted: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [plain, keyed, timer, other]),
        ({"queue": "orders"}, [plain, keyed, timer]),
        ({"key": "k"}, [keyed, other]),
        ({"queue": "orders", "key": "k"}, [keyed]),
        ({"state": "delayed"}, [timer, other]),
        ({"queue": "orders", "state": "delayed"}, [timer]),
        ({"queue": "other", "state": "delayed"}, [other]),
        ({"queue": "orders", "state": "ready"}, [plain, keyed]),
        ({"queue": "orders", "state": "parked"}, []),
        ({"correlation_id": "c-1"}, [plain]),
        ({"header": ("tenant", "a")}, [plain]),
        ({"header": ("number", "7")}, [plain]),
        ({"header": ("tenant", "b")}, []),
        ({"timer_id": "t"}, [timer]),
        ({"queue": "orders", "timer_id": "t"}, [timer]),
        ({"node": "00000000-0000"}, []),
        (
            {"published_after": now - timedelta(hours=1), "published_before": now + timedelta(hours=1)},
            [plain, keyed, timer, other],
        ),
        ({"published_after": now + timedelta(hours=1)}, []),
    ]
    for values, ids in wanted:
        selection = await _operations(backend).select(MessageFilter(**values))
        assert sorted(message.id for message in selection.sample) == ids, values
        assert selection.count == Count(len(ids))


async def test_a_selection_survives_json() -> None:
    where = MessageFilter(queue="orders", header=("tenant", "a"), published_after=datetime(2024, 1, 2, tzinfo=UTC))
    selection = Selection("messages", where, (), 7, Count(10_000, capped=True))
    assert Selection.from_dict(json.loads(json.dumps(selection.to_dict()))) == selection
    by_ids = Selection("dead_letters", None, (3, 1), 3, Count(2))
    assert Selection.from_dict(json.loads(json.dumps(by_ids.to_dict()))) == by_ids


def test_a_selection_that_was_changed_by_hand_is_refused() -> None:
    values = Selection("messages", MessageFilter(queue="orders"), (), 7, Count(1)).to_dict()
    with pytest.raises(ValueError, match="has no colour"):
        Selection.from_dict({**values, "where": {"colour": "red"}})
    with pytest.raises(ValueError, match="kind of a selection"):
        Selection.from_dict({**values, "kind": "people"})


async def test_counting_stops_at_ten_thousand(postgres: PostgresBackend) -> None:
    await postgres.fill(10_001)
    for where in (MessageFilter(), MessageFilter(queue="q")):
        assert str((await _operations(postgres).select(where)).count) == "10,000+"


async def test_select_takes_a_filter_only(backend: Backend) -> None:
    with pytest.raises(TypeError, match="MessageFilter or a DeadLetterFilter, not dict"):
        await _operations(backend).select({"queue": "orders"})  # type: ignore[arg-type]
