"""Rows whose lease is over: free after the first time, suspects after the second."""

import pytest

from faststream_outbox.storage import Ack, ClaimCursor, NewRow, Retry, Settlement
from faststream_outbox.storage.nodes import Deaths, Node, node_name
from faststream_outbox.storage.ordering import KeyCursor
from tests.backends import Backend, PostgresBackend, everywhere


async def lose(backend: Backend, count: int) -> None:
    """Claim rows for the first time, and lose their leases."""
    assert len((await backend.claim("q", lease_seconds=1)).rows) == count
    await backend.pass_time(2)


async def test_rows_that_come_back_for_the_first_time_are_claimed_together(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n) for n in range(5)))
    await lose(backend, 5)
    async with backend.store.connect() as lane:
        assert await lane.recover(everywhere("q")) == 5
        assert await lane.recover(everywhere("q")) == 0
    claim = await backend.claim("q")
    assert [(row.suspect, row.deliveries_count) for row in claim.rows] == [(False, 2)] * 5


async def test_rows_that_come_back_a_second_time_are_suspects(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n) for n in range(3)))
    async with backend.store.connect() as lane:
        await lose(backend, 3)
        await lane.recover(everywhere("q"))
        await lose(backend, 3)
        assert await lane.recover(everywhere("q")) == 0
        assert (await backend.claim("q")).rows == []
        suspects = [await lane.claim_suspect(everywhere("q"), lease_seconds=10) for _ in range(4)]
    assert [len(claim.rows) for claim in suspects] == [1, 1, 1, 0]


async def test_a_row_that_failed_and_comes_back_for_the_first_time_is_no_suspect(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    async with backend.store.connect() as lane:
        for attempt in (1, 2):
            [row] = (await backend.claim("q")).rows
            await lane.settle([Settlement(row.lease, Retry(0.0, attempt))])
        await lose(backend, 1)
        assert await lane.recover(everywhere("q")) == 1
    [row] = (await backend.claim("q")).rows
    assert (row.suspect, row.deliveries_count, row.attempts_count) == (False, 4, 2)


@pytest.mark.parametrize(("max_deliveries", "freed"), [(1, 0), (2, 0), (3, 1), (None, 1)])
async def test_a_row_that_may_be_delivered_only_once_more_is_a_suspect(
    backend: Backend, max_deliveries: int | None, freed: int
) -> None:
    await backend.insert(NewRow("q", b""))
    await lose(backend, 1)
    async with backend.store.connect() as lane:
        assert await lane.recover(everywhere("q"), max_deliveries=max_deliveries) == freed
        assert len((await backend.claim("q")).rows) == freed
        assert len((await lane.claim_suspect(everywhere("q"), lease_seconds=10)).rows) == 1 - freed


async def test_leases_that_hold_other_queues_and_what_is_ahead_are_left_alone(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"held"), NewRow("other", b"lost"))
    await backend.claim("q", lease_seconds=100)
    await backend.claim("other", lease_seconds=1)
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        assert await lane.recover(everywhere("q")) == 0
        assert await lane.recover(ClaimCursor(["other"])) == 0, "no claim has come so far"
        assert await lane.recover(everywhere("other")) == 1


async def test_the_process_that_lost_a_row_cannot_settle_it_once_it_was_freed(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""))
    [lost] = (await backend.claim("q", lease_seconds=1)).rows
    await backend.pass_time(2)
    async with backend.store.connect() as lane:
        await lane.recover(everywhere("q"))
        assert (await lane.settle([Settlement(lost.lease, Ack())])).lost == {lost.lease}
    assert len(await backend.rows()) == 1


async def test_keys_come_back_side_by_side_and_row_by_row(backend: Backend) -> None:
    """One of the rows behind the head may have killed the process, so each comes alone of its key."""
    await backend.insert(*(NewRow("q", b"%d" % n, key=key) for n in range(3) for key in ("a", "b")))
    keys, places = KeyCursor(["q"]), KeyCursor(["q"])
    async with backend.store.connect() as lane:
        claim = await lane.claim_runs(keys, keys=10, rows_per_key=10, lease_seconds=1)
        while claim.more and not claim.runs:
            claim = await lane.claim_runs(keys, keys=10, rows_per_key=10, lease_seconds=1)
        lost = claim.runs
        await backend.pass_time(2)
        places.go_to("q", ("", -1))
        assert await lane.recover_runs(places, rows_per_key=10) == len(lost)
        places.go_to("q", ("", -1))
        assert await lane.recover_runs(places, rows_per_key=10) == 0
        places.go_to("q", ("", -1))
        again = await lane.claim_runs(places, keys=10, rows_per_key=10, lease_seconds=60)
        assert {run.key for run in lost} <= {run.key for run in again.runs}
        by_key = {run.key: run for run in again.runs}
        for run in lost:
            assert [row.payload for row in by_key[run.key].rows] == [b"0"]
            assert not by_key[run.key].rows[0].suspect
            await lane.settle([Settlement(by_key[run.key].lease, Ack())])
        places.go_to("q", ("", -1))
        third = await lane.claim_runs(places, keys=10, rows_per_key=10, lease_seconds=60)
    assert {run.key: [row.payload for row in run.rows] for run in third.runs if run.key in by_key} == {
        run.key: [b"1"] for run in lost
    }


def kill(postgres: PostgresBackend, *alive: int) -> None:
    """Make the store know that all nodes are dead but these, which it has watched for long."""
    postgres.store.nodes.watch.deaths = Deaths(2.0**40, tuple(map(node_name, alive)))


async def test_leases_of_dead_nodes_are_over_and_those_of_living_ones_are_not(postgres: PostgresBackend) -> None:
    own = postgres.store.nodes.own
    own.note_locked(sent=0.0, received=0.0)
    own.sure_until = 2.0**60
    await postgres.insert(NewRow("q", b""), NewRow("q", b"", key="k"))
    places = KeyCursor(["q"])
    async with postgres.store.connect() as lane:
        await postgres.claim("q")
        await lane.claim_runs(places, keys=10, rows_per_key=10, lease_seconds=60)
        kill(postgres, own.id)
        places.go_to("q", ("", -1))
        assert (await lane.recover(everywhere("q")), await lane.recover_runs(places, rows_per_key=9)) == (0, 0)
        kill(postgres, Node().id)
        places.go_to("q", ("", -1))
        assert (await lane.recover(everywhere("q")), await lane.recover_runs(places, rows_per_key=9)) == (1, 1)


async def test_the_lease_of_a_handler_that_runs_on_after_its_node_stopped_lasts(postgres: PostgresBackend) -> None:
    own = postgres.store.nodes.own
    own.note_locked(sent=0.0, received=0.0)
    own.sure_until = 2.0**60
    await postgres.insert(NewRow("q", b"runs"), NewRow("q", b"done"))
    runs, _ = (await postgres.claim("q")).rows
    async with postgres.store.connect() as lane:
        await lane.leave_running([runs.lease])
        assert runs.acquired_epoch is not None
        postgres.store.nodes.watch.deaths = Deaths(runs.acquired_epoch + 1)
        assert await lane.recover(everywhere("q")) == 1
        assert [row.payload for row in (await postgres.claim("q")).rows] == [b"done"]
        assert (await lane.settle([Settlement(runs.lease, Ack())])).held == {runs.lease}


async def test_leases_without_a_node_last_until_their_end(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("q", b""))
    async with postgres.store.connect() as lane:
        [row] = (await postgres.claim("q")).rows
        assert row.lease.token.version == 4
        kill(postgres)
        assert await lane.recover(everywhere("q")) == 0


async def test_what_was_claimed_after_the_watch_began_is_left_alone(postgres: PostgresBackend) -> None:
    """The node may have started since, and not been seen yet."""
    own = postgres.store.nodes.own
    own.note_locked(sent=0.0, received=0.0)
    own.sure_until = 2.0**60
    await postgres.insert(NewRow("q", b""))
    [row] = (await postgres.claim("q")).rows
    assert row.acquired_epoch is not None
    async with postgres.store.connect() as lane:
        postgres.store.nodes.watch.deaths = Deaths(row.acquired_epoch - 1)
        assert await lane.recover(everywhere("q")) == 0
        postgres.store.nodes.watch.deaths = Deaths(row.acquired_epoch + 1)
        assert await lane.recover(everywhere("q")) == 1


async def test_the_leases_of_a_suspect_of_a_dead_node_end(postgres: PostgresBackend) -> None:
    own = postgres.store.nodes.own
    own.note_locked(sent=0.0, received=0.0)
    own.sure_until = 2.0**60
    await postgres.insert(NewRow("q", b""))
    async with postgres.store.connect() as lane:
        await lose(postgres, 1)
        await lane.recover(everywhere("q"))
        await postgres.claim("q", lease_seconds=600)
        kill(postgres)
        assert await lane.recover(everywhere("q")) == 1
        assert (await postgres.claim("q")).rows == []
        [suspect] = (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
    assert suspect.deliveries_count == 3
