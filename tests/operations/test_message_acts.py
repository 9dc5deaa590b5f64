"""Acts on messages, on both stores: what they change, and what they leave and why."""

from datetime import timedelta

import pytest
from sqlalchemy import TextClause, text

from faststream_outbox.operations import MessageFilter
from faststream_outbox.storage import NewRow, Retry, Settlement
from faststream_outbox.storage.ordering.key_cursor import KeyCursor, Run
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import Backend, PostgresBackend
from tests.operations.letters import operations_of

_HOUR = timedelta(hours=1)


async def claim_run(backend: Backend, queue: str = "q", *, rows_per_key: int = 100) -> Run:
    """Claim the first key of a queue that is free."""
    async with backend.store.connect() as lane:
        [run] = (await lane.claim_runs(KeyCursor([queue]), keys=1, rows_per_key=rows_per_key, lease_seconds=60)).runs
        return run


async def free_rows(backend: Backend, queue: str = "q") -> list[int]:
    """Claim what can be claimed, and return its ids."""
    unkeyed = [row.id for row in (await backend.claim(queue)).rows]
    async with backend.store.connect() as lane:
        runs = (await lane.claim_runs(KeyCursor([queue]), keys=100, rows_per_key=100, lease_seconds=60)).runs
    return sorted([*unkeyed, *(row.id for run in runs for row in run.rows)])


async def test_messages_that_wait_for_their_time_are_delivered_now(backend: Backend) -> None:
    late, ready, key_head, key_next = await backend.insert(
        NewRow("q", b"", activate_in=_HOUR),
        NewRow("q", b""),
        NewRow("q", b"", key="k", activate_in=_HOUR),
        NewRow("q", b"", key="k"),
    )
    operations = await operations_of(backend)
    result = await operations.deliver_now([late, ready, key_head], reason="now")
    assert (result.action, result.done, result.skipped) == (
        "deliver_now",
        2,
        {ready: "it is due already; if it is blocked, act on its key"},
    )
    assert await free_rows(backend) == [late, ready, key_head, key_next]


async def test_messages_that_wait_for_a_retry_are_delivered_now(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"1"), NewRow("other", b"2"))
    async with backend.store.connect() as lane:
        for row in (await backend.claim("q", "other")).rows:
            await lane.settle([Settlement(row.lease, Retry(3600, 1))])
    operations = await operations_of(backend)
    selection = await operations.select(MessageFilter(queue="q", state="retrying"))
    assert selection.count.number == 1
    assert (await operations.deliver_now(selection, reason="now")).done == 1
    assert [row.payload for row in (await backend.claim("q", "other")).rows] == [b"1"]
    [entry] = (await operations.audit()).items
    assert (entry.action, entry.target["where"], entry.count) == ("deliver_now", {"queue": "q", "state": "retrying"}, 1)


async def test_a_parked_message_is_not_delivered_now(backend: Backend) -> None:
    [row_id] = await backend.insert(NewRow("q", b"", key="k"))
    operations = await operations_of(backend)
    assert await operations.park_key("q", "k", reason="stop")
    result = await operations.deliver_now(row_id, reason="now")
    assert (result.done, result.skipped) == (0, {row_id: "its key is parked: retry or release the key"})


async def test_discarded_messages_are_gone_and_their_keys_go_on(backend: Backend) -> None:
    plain, head, following = await backend.insert(
        NewRow("q", b""), NewRow("q", b"", key="k", activate_in=_HOUR), NewRow("q", b"", key="k")
    )
    operations = await operations_of(backend)
    assert (await operations.discard([plain, head], reason="twice", by="ann")).done == 2
    assert await backend.dead_letters() == []
    assert await free_rows(backend) == [following]


async def test_a_message_behind_a_head_that_stays_can_be_discarded(backend: Backend) -> None:
    head, middle, last = await backend.insert(*(NewRow("q", b"%d" % n, {"n": n}, key="k") for n in range(3)))
    operations = await operations_of(backend)
    assert (await operations.discard(middle, reason="twice")).done == 1
    assert [(row.id, row.payload, row.headers) for row in await backend.rows()] == [
        (head, b"0", {"n": 0}),
        (last, b"2", {"n": 2}),
    ]
    assert await free_rows(backend) == [head, last]


async def test_messages_that_are_handled_are_not_discarded(backend: Backend) -> None:
    plain, head, follower = await backend.insert(NewRow("q", b""), NewRow("q", b"", key="k"), NewRow("q", b"", key="k"))
    assert await free_rows(backend) == [plain, head, follower]
    operations = await operations_of(backend)
    result = await operations.discard([plain, head, follower], reason="twice")
    assert (result.done, result.skipped) == (
        0,
        {
            plain: "a process is handling it",
            head: "a process is handling it",
            follower: "a process is handling messages of its key",
        },
    )


async def test_a_message_whose_lease_ran_out_can_be_discarded(backend: Backend) -> None:
    [row_id] = await backend.insert(NewRow("q", b""))
    [row] = (await backend.claim("q", lease_seconds=1)).rows
    await backend.pass_time(2)
    operations = await operations_of(backend)
    assert (await operations.discard(row_id, reason="it kills")).done == 1
    async with backend.store.connect() as lane:
        assert (await lane.settle([Settlement(row.lease, Retry(0, 1))])).lost == {row.lease}


async def test_the_filter_is_applied_again_when_rows_are_taken(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", activate_in=_HOUR), NewRow("q", b"", activate_in=_HOUR))
    operations = await operations_of(backend)
    await operations.deliver_now(1, reason="now")
    acted = await operations._call(None, backend.store.acts.discard, [1, 2], MessageFilter(queue="q", state="delayed"))
    assert (acted.done, acted.skipped) == (1, {1: "it is no longer as the selection says"})


async def test_messages_are_moved_with_their_ids(postgres: PostgresBackend) -> None:
    ids = await postgres.insert(NewRow("q", b"1", {"a": 1}), NewRow("q", b"2", timer_id="t"), NewRow("other", b"3"))
    operations = await operations_of(postgres)
    result = await operations.move(ids, "other", reason="shared")
    assert (result.done, result.skipped) == (2, {ids[2]: "it is in that queue already"})
    rows = [(row.id, row.queue, row.payload, row.headers, row.timer_id) for row in await postgres.rows()]
    assert rows == [(1, "other", b"1", {"a": 1}, None), (2, "other", b"2", None, "t"), (3, "other", b"3", None, None)]
    [entry] = (await operations.audit()).items
    assert (entry.action, entry.target["to"], entry.count) == ("move", "other", 2)


async def test_a_key_is_moved_in_its_order_behind_what_waits_of_it(postgres: PostgresBackend) -> None:
    await postgres.insert(
        NewRow("q", b"1", key="k"),
        NewRow("other", b"2", key="k"),
        NewRow("q", b"3", key="k", timer_id="t"),
        NewRow("q", b"4", key="k"),
        NewRow("q", b"5", key="l"),
    )
    operations = await operations_of(postgres)
    selection = await operations.select(MessageFilter(queue="q", key="k"))
    assert (await operations.move(selection, "other", reason="shared")).done == 3
    rows = [(row.queue, row.payload) for row in await postgres.rows() if row.entity_key == "k"]
    assert rows == [("other", payload) for payload in (b"2", b"1", b"3", b"4")]
    assert len((await claim_run(postgres, "other")).rows) == 2  # a timer comes alone
    assert (await operations.move(selection, "other", reason="again")).done == 0


async def test_a_part_of_a_key_is_moved_and_its_head_stays(postgres: PostgresBackend) -> None:
    head, middle, _ = await postgres.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(3)))
    operations = await operations_of(postgres)
    assert (await operations.move(middle, "other", reason="shared")).done == 1
    assert [(row.queue, row.payload) for row in await postgres.rows()] == [("q", b"0"), ("q", b"2"), ("other", b"1")]
    assert (await postgres.rows())[0].id == head


async def test_what_is_handled_is_not_moved_nor_what_is_behind_it(postgres: PostgresBackend) -> None:
    ids = await postgres.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(3)))
    await claim_run(postgres, rows_per_key=1)
    operations = await operations_of(postgres)
    result = await operations.move(ids, "other", reason="shared")
    assert (result.done, set(result.skipped)) == (0, set(ids))


async def test_a_row_that_cannot_be_moved_keeps_what_is_behind_it(postgres: PostgresBackend) -> None:
    first, second, third = await postgres.insert(*(NewRow("q", b"%d" % n, key="k") for n in range(3)))
    operations = await operations_of(postgres)
    async with postgres.transaction() as session:
        await session.execute(_lock(second))
        result = await operations.move([first, second, third], "other", reason="shared")
    assert (result.done, result.skipped) == (
        1,
        {
            second: "another transaction is changing it",
            third: "a message before it, of the same key, was left out",
        },
    )
    assert (await operations.move([second, third], "other", reason="shared")).done == 2
    assert [row.payload for row in await postgres.rows()] == [b"0", b"1", b"2"]


async def test_a_key_that_is_being_published_to_is_not_moved_there(postgres: PostgresBackend) -> None:
    [row_id] = await postgres.insert(NewRow("q", b"1", key="k"))
    operations = await operations_of(postgres)
    async with postgres.transaction() as session:
        await postgres.store.insert(session, NewRow("other", b"0", key="k"))
        result = await operations.move(row_id, "other", reason="shared")
        assert "has published for its key" in result.skipped[row_id]
    assert (await operations.move(row_id, "other", reason="shared")).done == 1
    assert [row.payload for row in await postgres.rows()] == [b"0", b"1"]


async def test_a_timer_that_waits_in_the_other_queue_is_not_replaced(postgres: PostgresBackend) -> None:
    first, second, third = await postgres.insert(
        NewRow("q", b"", timer_id="t"), NewRow("other", b"", timer_id="t"), NewRow("third", b"", timer_id="u")
    )
    operations = await operations_of(postgres)
    result = await operations.move([first, third], "other", reason="shared")
    assert (result.done, result.skipped) == (1, {first: "a timer of the same name waits in that queue"})
    assert second


async def test_a_timer_that_is_set_at_the_same_moment_is_left(postgres: PostgresBackend) -> None:
    timer, plain = await postgres.insert(NewRow("q", b"", timer_id="t"), NewRow("q", b""))
    operations = await operations_of(postgres)
    acts = postgres.store.acts
    found = acts._with_free_timers  # type: ignore[attr-defined]

    def set_meanwhile(session: object, rows: object, *rest: object) -> object:
        free = found(session, rows, *rest)
        acts._execute(session, _insert_timer())  # type: ignore[attr-defined]
        return free

    acts._with_free_timers = set_meanwhile  # type: ignore[attr-defined]
    result = await operations.move([timer, plain], "other", reason="shared")
    assert (result.done, result.skipped) == (1, {timer: "a timer of the same name waits in that queue"})


async def test_a_move_needs_a_transaction_that_sees_what_was_committed(postgres: PostgresBackend) -> None:
    [row_id] = await postgres.insert(NewRow("q", b"1", key="k"))
    operations = await operations_of(postgres)
    engine = postgres.engine.execution_options(isolation_level="REPEATABLE READ")
    async with engine.begin() as connection:
        with pytest.raises(ValueError, match="READ COMMITTED, and this one is REPEATABLE READ"):
            await operations.move(row_id, "other", reason="shared", session=connection)


def _lock(row_id: int) -> TextClause:
    return text(f"SELECT 1 FROM outbox WHERE id = {row_id} FOR UPDATE")


def _insert_timer() -> Statement:
    return Statement("INSERT INTO outbox (queue, payload, timer_id) VALUES ('other', '', 't') RETURNING id")
