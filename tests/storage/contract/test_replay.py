"""Dead letters that go back into the outbox: under their own ids, before what waits of their key, or not at all."""

import asyncio
from collections.abc import Iterable

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.storage import Ack, Dead, NewRow, Retry, Settlement
from faststream_outbox.storage.operating.replay import Replayed
from faststream_outbox.storage.ordering import Run
from faststream_outbox.storage.ordering.states import SkipKey
from faststream_outbox.storage.parking import PARKED
from tests.backends import Backend, PostgresBackend
from tests.observers import NotifiedQueues
from tests.storage.contract.test_runs import begun, claim, fill, payloads, settle, strategy

__all__ = ["strategy"]  # so that every test here runs with each of them, too

DEAD = Dead("retry_terminal", "ValueError: no", 3)


async def replay(backend: Backend, letter_ids: Iterable[int]) -> Replayed:
    async with backend.transaction() as session:
        return await backend.store.run(session, backend.store.admin.replay, list(letter_ids))


async def run_of(backend: Backend, key: str = "a", *, rows_per_key: int = 10) -> Run:
    """Claim one key, and give the others back."""
    runs = {run.key: run for run in (await claim(backend, rows_per_key=rows_per_key, cursor=begun())).runs}
    chosen = runs.pop(key)
    async with backend.store.connect() as lane:
        await lane.release(run.rows[0] for run in runs.values())
    return chosen


async def bury(backend: Backend, count: int = 1, key: str = "a") -> None:
    """Dead-letter the first rows of a key."""
    await settle(backend, await run_of(backend, key, rows_per_key=count), *[DEAD] * count)


async def test_a_row_goes_back_before_what_waits_of_its_key(backend: Backend) -> None:
    await fill(backend, *"aaa")
    await bury(backend)
    assert (await replay(backend, [1])) == Replayed([1])
    assert await backend.dead_letters() == []
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1", b"2"]}


async def test_a_row_goes_back_as_it_was_published(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"body", {"name": "value"}, key="a", timer_id="t"))
    [published] = await backend.rows()
    await bury(backend)
    await replay(backend, [1])
    [row] = await backend.rows()
    assert (row.id, row.queue, row.entity_key, row.payload) == (published.id, "q", "a", b"body")
    assert (row.headers, row.timer_id, row.created_epoch) == ({"name": "value"}, "t", published.created_epoch)
    assert (row.attempts_count, row.deliveries_count, row.first_attempt_at, row.last_attempt_at) == (0, 0, None, None)
    assert (row.acquired_token, row.acquired_epoch) == (None, None)


async def test_rows_of_a_key_go_back_together_in_their_order(backend: Backend) -> None:
    await fill(backend, *"aabaab")
    await bury(backend, 3)
    await bury(backend, 1, key="b")
    result = await replay(backend, [4, 3, 2, 1])
    assert result == Replayed([1, 2, 3, 4])
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1", b"3", b"4"], "b": [b"2", b"5"]}


async def test_a_row_goes_back_between_the_rows_that_wait(backend: Backend) -> None:
    await fill(backend, *"aaa")
    await bury(backend, 2)
    await replay(backend, [1])
    await replay(backend, [2])
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1", b"2"]}


async def test_a_row_of_a_key_with_nothing_else_goes_back(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury(backend)
    await settle(backend, await run_of(backend), Ack())
    assert (await replay(backend, [1])).back == [1]
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0"]}


async def test_rows_without_a_key_go_back_under_their_ids(backend: Backend) -> None:
    ids = await backend.insert(*(NewRow("q", b"%d" % number) for number in range(3)))
    claimed = (await backend.claim("q")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, DEAD) for row in claimed])
    assert (await replay(backend, [1, 2, 3])).back == [1, 2, 3]
    assert sorted(row.id for row in (await backend.claim("q")).rows) == ids


async def test_a_key_in_flight_is_left_alone(backend: Backend) -> None:
    await fill(backend, *"aab")
    await bury(backend)
    await backend.insert(NewRow("q", b"free", key="c"))
    run = await run_of(backend)
    assert await replay(backend, [1]) == Replayed([], {1: "in_flight"})
    assert len(await backend.dead_letters()) == 1
    assert (await settle(backend, run, Ack())).held == {run.lease}
    assert await replay(backend, [1]) == Replayed([1])


async def test_one_key_in_flight_does_not_hold_up_the_others(backend: Backend) -> None:
    await fill(backend, *"abab")
    await bury(backend, key="a")
    await bury(backend, key="b")
    await run_of(backend, "a")
    assert await replay(backend, [1, 2]) == Replayed([2], {1: "in_flight"})
    assert payloads(await claim(backend, cursor=begun())) == {"b": [b"1", b"3"]}


async def test_a_head_whose_lease_ran_out_stays_a_suspect_and_its_process_cannot_settle_it(backend: Backend) -> None:
    await fill(backend, *"aaa")
    await bury(backend)
    run = await run_of(backend)
    await backend.pass_time(61)
    assert (await replay(backend, [1])).back == [1]
    assert (await settle(backend, run, Ack(), Ack())).lost == {run.lease}
    async with backend.store.connect() as lane:
        assert not await lane.renew([run.lease], lease_seconds=60)
    back = await run_of(backend)
    assert [row.payload for row in back.rows] == [b"0"], "alone: the row behind it comes back from a lost lease"
    await settle(backend, back, Ack())
    suspect = await claim(backend, suspects=True, cursor=begun())
    assert payloads(suspect) == {"a": [b"1"]}


async def test_a_suspect_that_was_given_back_does_not_come_with_the_row_before_it(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury(backend)
    await run_of(backend)
    await backend.pass_time(61)
    [suspect] = (await claim(backend, suspects=True, cursor=begun())).runs
    async with backend.store.connect() as lane:
        assert await lane.release(suspect.rows)
    assert (await replay(backend, [1])).back == [1]
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0"]}


async def test_a_row_goes_back_before_one_that_waits_for_its_retry(backend: Backend) -> None:
    await fill(backend, *"aa")
    await bury(backend)
    await settle(backend, await run_of(backend), Retry(60.0, 2))
    await replay(backend, [1])
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0"]}
    waiting = (await backend.rows())[1]
    assert (waiting.attempts_count, waiting.deliveries_count) == (2, 1)


async def test_a_row_that_an_operator_skipped_goes_back_before_a_parked_one(backend: Backend) -> None:
    await fill(backend, *"aa")
    async with backend.transaction() as session:
        assert await backend.store.act_on_key(session, SkipKey("no"), queue="q", key="a") is not None
    assert (await replay(backend, [1])).back == [1]
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1"]}


async def test_what_is_not_there_is_skipped(backend: Backend) -> None:
    await fill(backend, "a")
    await bury(backend)
    assert await replay(backend, [1, 99]) == Replayed([1], {99: "gone"})
    assert await replay(backend, [1]) == Replayed([], {1: "gone"})
    assert await replay(backend, []) == Replayed()


async def test_a_timer_that_waits_again_is_not_replaced(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"old", timer_id="t"), NewRow("q", b"x", key="a"))
    async with backend.store.connect() as lane:
        [row] = (await backend.claim("q")).rows
        await lane.settle([Settlement(row.lease, DEAD)])
    await bury(backend)
    await backend.insert(NewRow("q", b"new", timer_id="t"))
    assert await replay(backend, [1, 2]) == Replayed([2], {1: "timer_waits"})
    assert len(await backend.dead_letters()) == 1
    assert [row.payload for row in await backend.rows()] == [b"x", b"new"]


async def test_one_of_two_timers_of_one_name_goes_back(backend: Backend) -> None:
    for body in (b"first", b"second"):
        await backend.insert(NewRow("q", body, timer_id="t", key="a"))
        await bury(backend)
    assert await replay(backend, [1, 2]) == Replayed([1], {2: "timer_waits"})
    assert [row.payload for row in await backend.rows()] == [b"first"]


async def test_a_replay_wakes_the_subscribers_of_its_queues(backend: Backend) -> None:
    await fill(backend, *"ab")
    await bury(backend)
    notified = NotifiedQueues()
    async with backend.store.listen(notified):
        await replay(backend, [1])
        await notified.until("q")


class TestOnPostgres:
    """What needs tables that others change, and transactions."""

    async def test_why_a_row_was_parked_is_not_among_its_headers(self, postgres: PostgresBackend) -> None:
        await fill(postgres, "a")
        await bury(postgres)
        await postgres.run(
            "UPDATE outbox_dlq SET headers = "
            f"jsonb_build_object('name', 'value', '{PARKED}', jsonb_build_object('reason', 'rejected'))"
        )
        await replay(postgres, [1])
        assert await postgres.one("SELECT headers::text FROM outbox") == '{"name": "value"}'

    async def test_an_id_that_is_taken_is_skipped(self, postgres: PostgresBackend) -> None:
        await fill(postgres, *"aa")
        await bury(postgres)
        await postgres.run(
            "INSERT INTO outbox_dlq (original_id, queue, entity_key, payload, created_at, failure_reason) "
            "SELECT original_id, queue, entity_key, 'twin', created_at, failure_reason FROM outbox_dlq"
        )
        assert await replay(postgres, [1, 2]) == Replayed([1], {2: "id_taken"})
        assert await replay(postgres, [2]) == Replayed([], {2: "id_taken"})
        assert [letter.payload for letter in await postgres.dead_letters()] == [b"twin"]
        assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"0", b"1"]}

    async def test_an_id_that_publishers_have_not_reached_is_skipped(self, postgres: PostgresBackend) -> None:
        await fill(postgres, "a")
        await bury(postgres)
        await postgres.run("UPDATE outbox_dlq SET original_id = 7")
        assert await replay(postgres, [1]) == Replayed([], {1: "id_not_drawn"})

    async def test_a_key_that_is_being_published_is_skipped(self, postgres: PostgresBackend) -> None:
        await fill(postgres, "a")
        await bury(postgres)
        async with postgres.transaction() as session:
            await postgres.store.insert(session, NewRow("q", b"new", key="a"))
            assert await replay(postgres, [1]) == Replayed([], {1: "publishing"})
        assert (await replay(postgres, [1])).back == [1]
        assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"0", b"new"]}

    async def test_a_head_that_another_transaction_has_locked_counts_as_in_flight(
        self, postgres: PostgresBackend
    ) -> None:
        await fill(postgres, *"aa")
        await bury(postgres)
        async with postgres.transaction() as session:
            await (await session.connection()).exec_driver_sql("SELECT id FROM outbox FOR UPDATE")
            assert await replay(postgres, [1]) == Replayed([], {1: "in_flight"})
        assert (await replay(postgres, [1])).back == [1]

    async def test_two_operators_share_the_letters(self, postgres: PostgresBackend) -> None:
        await postgres.insert(NewRow("q", b"1"), NewRow("q", b"2"))
        async with postgres.store.connect() as lane:
            await lane.settle([Settlement(row.lease, DEAD) for row in (await postgres.claim("q")).rows])
        async with postgres.transaction() as session:
            await postgres.store.run(session, postgres.store.admin.replay, [1])
            assert await replay(postgres, [1, 2]) == Replayed([2], {1: "locked"})
        assert await replay(postgres, [1, 2]) == Replayed([], {1: "gone", 2: "gone"})
        assert len(await postgres.rows()) == 2

    async def test_a_replay_that_is_rolled_back_changes_nothing(self, postgres: PostgresBackend) -> None:
        await fill(postgres, *"aa")
        await bury(postgres)
        async with postgres.sessions() as session:
            await postgres.store.run(session, postgres.store.admin.replay, [1])
            await session.rollback()
        assert len(await postgres.dead_letters()) == 1
        assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"1"]}

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    async def test_a_transaction_with_an_old_snapshot_is_refused(self, postgres: PostgresBackend, level: str) -> None:
        async with AsyncSession(postgres.engine.execution_options(isolation_level=level)) as session:
            with pytest.raises(ValueError, match=level):
                await postgres.store.run(session, postgres.store.admin.replay, [1])

    async def test_the_head_that_is_written_anew_stays_as_it_was(self, postgres: PostgresBackend) -> None:
        await postgres.insert(NewRow("q", b"0", key="a"), NewRow("q", b"1", {"name": "value"}, key="a", timer_id="t"))
        await bury(postgres)
        await settle(postgres, await run_of(postgres), Retry(60.0, 2))
        before = await postgres.run("SELECT outbox::text FROM outbox")
        await replay(postgres, [1])
        assert await postgres.run("SELECT outbox::text FROM outbox WHERE payload = '1'") == before

    async def test_publishers_wait_until_the_replay_has_ended(self, postgres: PostgresBackend) -> None:
        await fill(postgres, "a")
        await bury(postgres)
        async with postgres.transaction() as session:
            await postgres.store.run(session, postgres.store.admin.replay, [1])
            publishing = asyncio.create_task(postgres.insert(NewRow("q", b"new", key="a")))
            done, _ = await asyncio.wait([publishing], timeout=0.2)
            assert not done
        await publishing
        assert payloads(await claim(postgres, cursor=begun())) == {"a": [b"0", b"new"]}
