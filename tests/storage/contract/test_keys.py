"""What operators ask of keys, and do with them: the head is changed, or it is in flight and left alone."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest

from faststream_outbox.storage import Ack, Dead, NewRow, OutboxRow, Outcome, Park, Retry
from faststream_outbox.storage.ordering import (
    KeyAction,
    KeyState,
    KeyStateName,
    ParkKey,
    ReleaseKey,
    RetryKey,
    Run,
    SkipKey,
)
from faststream_outbox.storage.parking import cause_in
from tests.backends import Backend, PostgresBackend
from tests.storage.contract.test_runs import begun, claim, fill, payloads, settle

HOUR = timedelta(hours=1)
POISON = Park(Dead("retry_terminal", "ValueError: no good", 3))
EVERY_ACTION: list[KeyAction] = [RetryKey(), ReleaseKey(), ParkKey("because"), SkipKey("because")]


async def act(
    backend: Backend, action: KeyAction, key: str = "a", queue: str = "q", *, head: int | None = None
) -> int | None:
    async with backend.transaction() as session:
        return await backend.store.act_on_key(session, action, queue=queue, key=key, head=head)


async def keys(
    backend: Backend, *, queue: str | None = None, state: KeyStateName | None = None, limit: int = 1000
) -> list[KeyState]:
    async with backend.transaction() as session:
        return await backend.store.read_keys(session, queue=queue, state=state, limit=limit)


async def head_of(backend: Backend, key: str = "a") -> OutboxRow:
    return next(row for row in await backend.rows() if row.entity_key == key)


async def end(backend: Backend, outcome: Outcome, *rows: str) -> Run:
    """Publish rows, and let the first of key `a` end like this."""
    await fill(backend, *(rows or "aa"))
    run = next(run for run in (await claim(backend, rows_per_key=1, cursor=begun())).runs if run.key == "a")
    await settle(backend, run, outcome)
    return run


async def test_keys_are_described_by_their_heads(backend: Backend) -> None:
    await backend.insert(
        NewRow("q", b"", key="parked"),
        NewRow("q", b"", key="retrying"),
        NewRow("q", b"", key="expired"),
    )
    runs = {run.key: run for run in (await claim(backend, cursor=begun())).runs}
    await settle(backend, runs["parked"], POISON)
    await settle(backend, runs["retrying"], Retry(7200.0, 2))
    await backend.insert(NewRow("q", b"", key="delayed", activate_in=HOUR))
    await backend.pass_time(100)
    await backend.insert(NewRow("q", b"", key="in flight"), NewRow("q", b"", key="z: ready"))
    await claim(backend, keys=1, cursor=begun())
    await backend.insert(*(NewRow("q", b"", key=key) for key in ("parked", "parked", "retrying", "in flight")))
    found = await keys(backend)
    assert [(key.queue, key.key, key.state, key.waiting, key.attempts) for key in found] == [
        ("q", "delayed", "delayed", 0, 0),
        ("q", "expired", "expired", 0, 0),
        ("q", "parked", "parked", 2, 3),
        ("q", "retrying", "retrying", 1, 2),
    ]
    assert [key.cause for key in found] == [
        "not due yet",
        "its lease ran out: the process that handled it died or hangs",
        "retry_terminal: ValueError: no good",
        "failed 2 times",
    ]
    about = [pytest.approx(seconds, abs=30) for seconds in (100, 40, 100, 100)]
    assert [key.age for key in found] == about
    due = [pytest.approx(seconds, abs=30) for seconds in (3500, 0)]
    assert [key.due_in for key in found] == [*due, None, pytest.approx(7100, abs=30)]
    rows = {row.entity_key: row.id for row in reversed(await backend.rows())}
    assert {key.key: key.head_id for key in found} == {key.key: rows[key.key] for key in found}
    [flying] = await keys(backend, state="in_flight")
    assert (flying.key, flying.waiting, flying.cause, flying.due_in) == ("in flight", 1, "being handled", None)
    assert [key.key for key in await keys(backend, state="parked")] == ["parked"]


async def test_keys_are_told_by_queue_and_up_to_a_limit(backend: Backend) -> None:
    rows = [NewRow(queue, b"", key=str(n), activate_in=HOUR) for queue in "cab" for n in range(5)]
    await backend.insert(*rows, NewRow("b", b"", key="ready"), NewRow("b", b"", activate_in=HOUR))
    assert [(key.queue, key.key) for key in await keys(backend, limit=7)] == [
        *(("a", str(n)) for n in range(5)),
        ("b", "0"),
        ("b", "1"),
    ]
    assert [(key.queue, key.key) for key in await keys(backend, queue="b")] == [("b", str(n)) for n in range(5)]
    assert await keys(backend, queue="bb") == []
    assert len(await keys(backend)) == 15


async def test_of_a_store_without_keys_there_is_nothing_to_tell(backend: Backend) -> None:
    assert await keys(backend) == []
    await backend.insert(NewRow("q", b"", activate_in=HOUR))
    assert await keys(backend) == []


@pytest.mark.parametrize("action", EVERY_ACTION)
async def test_a_key_that_is_not_there(backend: Backend, action: KeyAction) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b"", key="b", activate_in=HOUR), NewRow("r", b"", key="a"))
    assert await act(backend, action) is None
    assert len(await backend.rows()) == 3
    assert await backend.dead_letters() == []


@pytest.mark.parametrize("action", EVERY_ACTION)
async def test_a_head_in_flight_is_left_alone(backend: Backend, action: KeyAction) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    before = await backend.rows()
    assert await act(backend, action) is None
    assert await backend.rows() == before
    assert (await settle(backend, run, Ack(), Ack(), Ack())).held == {run.lease}
    assert await backend.rows() == []


@pytest.mark.parametrize("action", [RetryKey(), ParkKey("because"), SkipKey("because")])
@pytest.mark.parametrize("outcome", [Ack(), Retry(0.0, 1), Dead("rejected"), POISON])
async def test_an_operator_and_a_handler_cannot_both_have_their_way(
    backend: Backend, action: KeyAction, outcome: Outcome
) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    await backend.pass_time(61)
    assert await act(backend, action) == run.rows[0].id
    after, dead = await backend.rows(), await backend.dead_letters()
    assert (await settle(backend, run, outcome)).lost == {run.lease}
    assert (await settle(backend, run, Ack(), outcome)).lost == {run.lease}
    async with backend.store.connect() as lane:
        assert await lane.renew([run.lease], lease_seconds=60) == frozenset()
    assert (await backend.rows(), await backend.dead_letters()) == (after, dead)


async def test_retrying_a_suspect_leaves_it_one(backend: Backend) -> None:
    await fill(backend, *"aa")
    await claim(backend, cursor=begun())
    await backend.pass_time(61)
    assert await act(backend, RetryKey()) is not None
    assert (await claim(backend, cursor=begun())).runs == []
    [run] = (await claim(backend, suspects=True, cursor=begun())).runs
    assert [row.payload for row in run.rows] == [b"0"]


async def test_retry_makes_a_head_due_that_waits_for_its_retry(backend: Backend) -> None:
    run = await end(backend, Retry(3600.0, 2))
    assert await act(backend, RetryKey()) == run.rows[0].id
    [again] = (await claim(backend, cursor=begun())).runs
    assert [(row.payload, row.attempts_count, row.deliveries_count) for row in again.rows] == [(b"0", 2, 2)]


async def test_retry_makes_a_delayed_head_due(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0", key="a", activate_in=HOUR), NewRow("q", b"1", key="a"))
    assert await act(backend, RetryKey()) is not None
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1"]}


async def test_retry_lets_a_parked_head_start_from_the_beginning(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0", {"x": 1}, key="a"), NewRow("q", b"1", key="a"))
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, POISON)
    assert await act(backend, RetryKey()) is not None
    head = await head_of(backend)
    assert (head.attempts_count, head.deliveries_count) == (0, 0)
    assert (head.first_attempt_epoch, head.last_attempt_epoch) == (None, None)
    assert head.headers_json is not None
    assert "outbox-parked" not in head.headers_json
    assert head.headers == {"x": 1}
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1"]}


async def test_retry_of_a_head_that_is_due_changes_nothing(backend: Backend) -> None:
    await fill(backend, *"aa")
    before = await backend.rows()
    assert await act(backend, RetryKey()) == before[0].id
    assert await backend.rows() == before


async def test_release_takes_a_parking_back_and_keeps_the_attempts(backend: Backend) -> None:
    run = await end(backend, POISON)
    assert await act(backend, ReleaseKey()) == run.rows[0].id
    head = await head_of(backend)
    assert (head.attempts_count, head.headers_json) == (3, None)
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1"]}


async def test_release_gives_a_delivery_to_what_had_too_many(backend: Backend) -> None:
    await end(backend, Park(Dead("max_deliveries")))
    assert await act(backend, ReleaseKey()) is not None
    assert (await head_of(backend)).deliveries_count == 0


async def test_release_restores_when_a_head_was_due(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0", key="a", activate_in=HOUR))
    due = (await head_of(backend)).next_attempt_epoch
    assert await act(backend, ParkKey("wait")) is not None
    assert await act(backend, ReleaseKey()) is not None
    assert (await head_of(backend)).next_attempt_epoch == pytest.approx(due, abs=0.001)
    assert (await claim(backend, cursor=begun())).runs == []
    assert (await keys(backend))[0].state == "delayed"


@pytest.mark.parametrize("outcome", [Retry(3600.0, 1), Ack()])
async def test_release_is_for_parked_keys(backend: Backend, outcome: Outcome) -> None:
    await end(backend, outcome)
    before = await backend.rows()
    assert await act(backend, ReleaseKey()) is None
    assert await backend.rows() == before


async def test_park_stops_a_key_and_says_why(backend: Backend) -> None:
    await fill(backend, *"aab")
    assert await act(backend, ParkKey("the bank is closed")) is not None
    assert payloads(await claim(backend, cursor=begun())) == {"b": [b"2"]}
    head = await head_of(backend)
    assert head.next_attempt_epoch == math.inf
    cause = cause_in(head.headers_json)
    assert (cause.reason, cause.exception) == ("operator", "the bank is closed")
    [key] = await keys(backend, state="parked")
    assert (key.cause, key.waiting, key.attempts) == ("operator: the bank is closed", 1, 0)
    assert key.age == pytest.approx(0, abs=30)


async def test_what_is_parked_already_keeps_its_cause(backend: Backend) -> None:
    await end(backend, POISON)
    assert await act(backend, ParkKey("again")) is None
    assert cause_in((await head_of(backend)).headers_json).reason == "retry_terminal"


async def test_skip_moves_the_head_to_the_dead_and_the_key_goes_on(backend: Backend) -> None:
    run = await end(backend, Retry(3600.0, 2))
    assert await act(backend, SkipKey("not ours")) == run.rows[0].id
    [dead] = await backend.dead_letters()
    assert (dead.original_id, dead.entity_key, dead.failure_reason) == (run.rows[0].id, "a", "rejected")
    assert (dead.last_exception, dead.attempts_count, dead.deliveries_count) == ("not ours", 2, 1)
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"1"]}


async def test_skip_keeps_what_a_head_was_parked_for(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0", {"x": 1}, key="a"))
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, POISON)
    await act(backend, SkipKey("seen by Ada"))
    [dead] = await backend.dead_letters()
    assert dead.last_exception == "seen by Ada\n\nparked for retry_terminal: ValueError: no good"
    assert await dead_headers(backend) == [{"x": 1}]


@pytest.mark.parametrize("back", [False, True])
async def test_skip_keeps_what_failed_last(backend: Backend, *, back: bool) -> None:
    await end(backend, Retry(3600.0, 2, failure="ValueError: poison order"))
    if back:
        await act(backend, ParkKey("under investigation"))
        await act(backend, ReleaseKey())
    await act(backend, SkipKey("cancelled"))
    [dead] = await backend.dead_letters()
    assert dead.last_exception == "cancelled\n\nlast failure: ValueError: poison order"


async def test_skip_of_a_head_that_an_operator_parked_keeps_what_failed_last(backend: Backend) -> None:
    await end(backend, Retry(3600.0, 2, failure="ValueError: poison order"))
    await act(backend, ParkKey("under investigation"))
    await act(backend, SkipKey("cancelled"))
    [dead] = await backend.dead_letters()
    failed, parked = "last failure: ValueError: poison order", "parked for operator: under investigation"
    assert dead.last_exception == f"cancelled\n\n{failed}\n\n{parked}"


async def test_a_release_brings_back_the_headers_and_what_failed_last(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0", {"x": 1}, key="a"))
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Retry(3600.0, 2, failure="ValueError: no"))
    await act(backend, ParkKey("under investigation"))
    await act(backend, ReleaseKey())
    head = await head_of(backend)
    assert head.headers == {"x": 1}
    assert str(cause_in(head.headers_json)) == "ValueError: no"


async def dead_headers(backend: Backend) -> list[Any]:
    if isinstance(backend, PostgresBackend):
        return [headers for (headers,) in await backend.run("SELECT headers FROM outbox_dlq ORDER BY id")]
    store: Any = backend.store
    return [dead.row.headers for dead in store.dead]


async def test_one_skip_gives_up_one_row(backend: Backend) -> None:
    await fill(backend, *"aaa")
    skipped = [await act(backend, SkipKey("x")) for _ in range(4)]
    assert skipped == [*(dead.original_id for dead in await backend.dead_letters()), None]
    assert len(await backend.dead_letters()) == 3
    assert await backend.rows() == []


@pytest.mark.parametrize("action", EVERY_ACTION)
async def test_an_act_for_another_head_changes_nothing(backend: Backend, action: KeyAction) -> None:
    [first, second] = await backend.insert(NewRow("q", b"0", key="a"), NewRow("q", b"1", key="a"))
    before = await backend.rows()
    assert await act(backend, action, head=second) is None
    assert await backend.rows() == before
    assert await backend.dead_letters() == []
    expected = None if isinstance(action, ReleaseKey) else first  # which is for parked heads
    assert await act(backend, action, head=first) == expected


async def test_of_two_skips_of_one_head_the_second_does_nothing(backend: Backend) -> None:
    head, *rest = await backend.insert(*(NewRow("q", b"", key="a") for _ in range(3)))
    skipped = await asyncio.gather(*(act(backend, SkipKey("x"), head=head) for _ in range(2)))
    assert sorted(skipped, key=bool) == [None, head]
    assert [row.id for row in await backend.rows()] == rest


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"head": 0}, ValueError),
        ({"head": "1"}, TypeError),
        ({"queue": ""}, ValueError),
        ({"queue": 1}, TypeError),
        ({"key": ""}, ValueError),
        ({"key": None}, TypeError),
        ({"key": "a\x00b"}, ValueError),
        ({"key": "k" * 300}, ValueError),
    ],
)
@pytest.mark.parametrize("action", EVERY_ACTION)
async def test_names_are_checked(
    backend: Backend, action: KeyAction, arguments: dict[str, Any], error: type[Exception]
) -> None:
    async with backend.transaction() as session:
        with pytest.raises(error):
            await backend.store.act_on_key(session, action, **{"queue": "q", "key": "a", **arguments})


@pytest.mark.parametrize("make", [ParkKey, SkipKey])
@pytest.mark.parametrize("reason", ["", "  ", "a\x00b", "\ud800", "x" * 1001])
def test_reasons_are_checked(make: type[ParkKey] | type[SkipKey], reason: str) -> None:
    with pytest.raises(ValueError, match="reason"):
        make(reason)
    with pytest.raises(TypeError, match="reason is a str"):
        make(None)  # type: ignore[arg-type]  # what is refused


async def test_other_arguments_are_checked(backend: Backend) -> None:
    with pytest.raises(ValueError, match='state is one of "retrying", '):
        await keys(backend, state="stuck")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="state is one of"):
        await keys(backend, state="ready")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="limit"):
        await keys(backend, limit=0)
    with pytest.raises(ValueError, match="queue"):
        await keys(backend, queue="")


@pytest.mark.parametrize("headers", ["NULL", "'{}'", "'null'", "'[1]'", "'\"text\"'", "'{\"outbox-parked\": 1}'"])
@pytest.mark.parametrize("back", [RetryKey(), ReleaseKey()])
async def test_headers_come_back_as_they_were(postgres: PostgresBackend, headers: str, back: KeyAction) -> None:
    await postgres.run(
        f"INSERT INTO outbox (queue, entity_key, payload, headers) VALUES ('q', 'a', '1', CAST({headers} AS jsonb))"
    )
    before = await postgres.one("SELECT headers FROM outbox")
    for park in (True, False):
        if park:
            await act(postgres, ParkKey("x"))
        else:
            [run] = (await claim(postgres, cursor=begun())).runs
            await settle(postgres, run, POISON)
        [key] = await keys(postgres)
        assert key.state == "parked"
        assert await act(postgres, back) is not None
        if headers != "'{\"outbox-parked\": 1}'":  # whoever writes our name by hand loses what was there
            assert await postgres.one("SELECT headers FROM outbox") == before


async def test_nobody_waits_for_whoever_has_the_head_locked(postgres: PostgresBackend) -> None:
    await fill(postgres, *"ab")
    async with postgres.transaction() as claimer:
        await (await claimer.connection()).exec_driver_sql("SELECT 1 FROM outbox WHERE entity_key = 'a' FOR UPDATE")
        async with asyncio.timeout(30):
            assert [await act(postgres, action) for action in EVERY_ACTION] == [None] * 4
            assert await act(postgres, ParkKey("x"), "b") is not None


@pytest.mark.parametrize("action", [RetryKey(), ParkKey("x"), SkipKey("x")])
async def test_what_is_rolled_back_has_not_happened(postgres: PostgresBackend, action: KeyAction) -> None:
    await end(postgres, Retry(3600.0, 1))
    before = await postgres.rows()
    async with postgres.sessions() as session:
        assert await postgres.store.act_on_key(session, action, queue="q", key="a") is not None
        await session.rollback()
    assert await postgres.rows() == before
    assert await postgres.dead_letters() == []


async def test_a_claim_goes_past_a_head_that_an_operator_has_in_hand(postgres: PostgresBackend) -> None:
    await fill(postgres, *"ab")
    async with postgres.transaction() as session:
        await postgres.store.act_on_key(session, ParkKey("x"), queue="q", key="a")
        async with asyncio.timeout(30):
            assert payloads(await claim(postgres, cursor=begun())) == {"b": [b"1"]}
    assert (await claim(postgres, cursor=begun())).runs == []


async def test_without_a_dead_letter_table_what_is_skipped_is_gone(postgres: PostgresBackend) -> None:
    other = PostgresBackend(postgres.engine, table_name="bare", keep_dead=False)
    await other.create()
    await fill(other, *"aa")
    assert await act(other, SkipKey("x")) is not None
    assert len(await other.rows()) == 1
