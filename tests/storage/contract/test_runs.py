"""Rows with a key: claimed in their order, by one at a time, and settled behind the fence of their head."""

from datetime import timedelta

import pytest

from faststream_outbox.storage import Ack, Dead, Lease, NewRow, Outcome, Park, Retry, Settled, Settlement
from faststream_outbox.storage.ordering import (
    AdvisoryLocks,
    HashShards,
    HeadLease,
    KeyCursor,
    Ordering,
    OwnShards,
    Run,
    RunClaim,
    Shard,
)
from tests.backends import Backend

HOUR = timedelta(hours=1)
SHARDS = 4


@pytest.fixture(autouse=True, params=["HeadLease", "AdvisoryLocks", "HashShards"])
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every test here run with each strategy; a single claimer has all shards."""
    strategies: dict[str, Ordering] = {
        "HeadLease": HeadLease(),
        "AdvisoryLocks": AdvisoryLocks(),
        "HashShards": HashShards(count=SHARDS),
    }
    monkeypatch.setitem(_CHOSEN, "ordering", strategies[request.param])


_CHOSEN: dict[str, Ordering] = {}


def _cursor() -> KeyCursor:
    ordering = _CHOSEN.get("ordering", HeadLease())  # for those who borrow this
    everything = OwnShards(SHARDS, [Shard("q", number) for number in range(SHARDS)])
    return KeyCursor(["q"], ordering=ordering, shards=everything if isinstance(ordering, HashShards) else None)


async def claim(
    backend: Backend,
    *,
    keys: int = 100,
    rows_per_key: int = 10,
    suspects: bool = False,
    cursor: KeyCursor | None = None,
) -> RunClaim:
    """Claim once around, as a claimer does that has just started."""
    cursor = cursor or _cursor()
    async with backend.store.connect() as lane:
        claimed = await lane.claim_runs(
            cursor, keys=keys, rows_per_key=rows_per_key, lease_seconds=60.0, suspects=suspects
        )
        if claimed.runs:
            return claimed
        return await lane.claim_runs(
            cursor, keys=keys, rows_per_key=rows_per_key, lease_seconds=60.0, suspects=suspects
        )


async def fill(backend: Backend, *keys: str) -> None:
    await backend.insert(*(NewRow("q", b"%d" % n, key=key) for n, key in enumerate(keys)))


async def settle(backend: Backend, run: Run, *outcomes: Outcome) -> Settled:
    async with backend.store.connect() as lane:
        rows = zip(run.rows, outcomes, strict=False)
        return await lane.settle([Settlement.of_run(run.lease, [(row.id, outcome) for row, outcome in rows])])


def payloads(claimed: RunClaim) -> dict[str | None, list[bytes]]:
    return {run.key: [row.payload for row in run.rows] for run in claimed.runs}


async def test_a_key_comes_whole_and_in_order(backend: Backend) -> None:
    await fill(backend, "a", "b", "a", "b", "a")
    claimed = await claim(backend, cursor=begun())
    assert payloads(claimed) == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3"]}
    assert {row.deliveries_count for run in claimed.runs for row in run.rows} == {1}


def begun() -> KeyCursor:
    """A cursor that stands at the first key."""
    cursor = _cursor()
    cursor.record(cursor.plan(), last=None, ended=True, found=0, next_due=None)
    return cursor


async def test_a_claimer_that_is_alone_loses_no_key(backend: Backend) -> None:
    await fill(backend, *"abacdefa")
    await backend.insert(NewRow("q", b"", key="later", activate_in=HOUR))
    await claim(backend, keys=2)
    await backend.pass_time(61)
    cursor, lost, keys = _cursor(), 0, list[str | None]()
    for suspects in [False] * 10 + [True] * 10 + [False] * 10:
        claimed = await claim(backend, keys=2, suspects=suspects, cursor=cursor)
        lost += claimed.lost
        for run in claimed.runs:
            keys += [run.key] * len(run.rows)
            await settle(backend, run, *[Ack()] * len(run.rows))
    assert sorted(map(str, keys)) == [*"aaabcdef"]
    assert lost == 0


async def test_a_key_that_is_leased_is_nobody_elses(backend: Backend) -> None:
    await fill(backend, "a", "a", "b")
    assert payloads(await claim(backend, keys=1, rows_per_key=1, cursor=begun())) == {"a": [b"0"]}
    assert payloads(await claim(backend, cursor=begun())) == {"b": [b"2"]}
    await fill(backend, "a")
    assert (await claim(backend, cursor=begun())).runs == []


async def test_a_run_that_is_done_is_gone_and_the_next_begins_behind_it(backend: Backend) -> None:
    await fill(backend, *"aaaa")
    [run] = (await claim(backend, rows_per_key=2, cursor=begun())).runs
    settled = await settle(backend, run, Ack(), Ack())
    assert settled.held == {run.lease}
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"2", b"3"]}


async def test_a_row_that_failed_blocks_its_key_until_it_is_due(backend: Backend) -> None:
    await fill(backend, *"aaab")
    claimed = await claim(backend, cursor=begun())
    run = next(run for run in claimed.runs if run.key == "a")
    await settle(backend, run, Ack(), Retry(30.0, 1))
    second = await claim(backend, cursor=begun())
    assert second.runs == []
    assert second.next_due == pytest.approx(30, abs=5)
    await backend.pass_time(31)
    again = await claim(backend, cursor=begun())
    assert payloads(again) == {"a": [b"1"]}
    assert [(row.attempts_count, row.deliveries_count) for row in again.runs[0].rows] == [(1, 2)]


async def test_a_row_that_was_not_reached_is_as_it_was(backend: Backend) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Ack())
    one, two = await backend.rows()
    assert [(row.acquired_token, row.attempts_count, row.deliveries_count) for row in (one, two)] == [(None, 0, 0)] * 2
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"1", b"2"]}


async def test_the_fence_is_the_heads(backend: Backend) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    await backend.pass_time(61)
    [thief] = (await claim(backend, suspects=True, cursor=begun())).runs
    assert [row.payload for row in thief.rows] == [b"0"], "what comes back from a lease that ran out comes alone"
    assert thief.rows[0].suspect
    late = await settle(backend, run, Ack((NewRow("out", b"late"),)), Ack(), Dead("rejected"))
    assert late.lost == {run.lease}
    assert len(await backend.rows()) == 3
    assert await backend.dead_letters() == []
    assert (await settle(backend, thief, Ack())).held == {thief.lease}


async def test_what_may_have_been_with_a_suspect_comes_alone_as_well(backend: Backend) -> None:
    await fill(backend, *"aaaaa")
    await claim(backend, rows_per_key=3, cursor=begun())
    await backend.pass_time(61)
    came, suspects = list[list[bytes]](), True
    while runs := (await claim(backend, rows_per_key=3, suspects=suspects, cursor=begun())).runs:
        came.append([row.payload for row in runs[0].rows])
        assert [row.deliveries_count for row in runs[0].rows] == ([2] if suspects else [1] * len(runs[0].rows))
        await settle(backend, runs[0], *(Ack() for _ in runs[0].rows))
        suspects = False
    assert came == [[b"0"], [b"1"], [b"2"], [b"3", b"4"]], "one of the first three may have ended its process"


async def test_a_run_ends_before_a_row_that_comes_alone(backend: Backend) -> None:
    await fill(backend, *"aaa")
    await claim(backend, cursor=begun())
    await backend.pass_time(61)
    [suspect] = (await claim(backend, suspects=True, cursor=begun())).runs
    await settle(backend, suspect, Ack())
    [run] = (await claim(backend, cursor=begun())).runs
    async with backend.store.connect() as lane:
        await lane.release(run.rows)
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"1"]}


async def test_expired_keys_are_left_to_whoever_asks_for_suspects(backend: Backend) -> None:
    await fill(backend, *"ab")
    assert len((await claim(backend, cursor=begun())).runs) == 2
    await backend.pass_time(61)
    fresh = await claim(backend, cursor=begun())
    assert fresh.runs == []
    assert fresh.suspects
    assert len((await claim(backend, keys=1, suspects=True, cursor=begun())).runs) == 1


async def test_dead_rows_are_kept_and_the_run_goes_on(backend: Backend) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Ack(), Dead("rejected", "no\x00good"), Ack())
    assert await backend.rows() == []
    [dead] = await backend.dead_letters()
    assert (dead.payload, dead.entity_key, dead.failure_reason) == (b"1", "a", "rejected")


@pytest.mark.parametrize("outcome", [Retry(30.0, 1), Dead("rejected"), Park(Dead("rejected"))])
@pytest.mark.parametrize("behind", [0, 1], ids=["head", "behind it"])
async def test_a_delivery_is_counted_wherever_the_row_stood(backend: Backend, outcome: Outcome, behind: int) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, *([Ack()] * behind), outcome)
    row = (await backend.dead_letters() if isinstance(outcome, Dead) else await backend.rows())[0]
    assert (row.payload, row.deliveries_count) == (b"%d" % behind, 1)


async def test_outputs_come_with_the_end_of_their_rows(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Ack((NewRow("out", b"x", key="k"), NewRow("out", b"y"))), Retry(1.0, 1))
    assert [(row.queue, row.payload) for row in await backend.rows()] == [("q", b"1"), ("out", b"x"), ("out", b"y")]


async def test_a_delayed_row_ends_the_run_and_blocks_what_is_behind_it(backend: Backend) -> None:
    await backend.insert(
        NewRow("q", b"0", key="a"), NewRow("q", b"1", key="a", activate_in=HOUR), NewRow("q", b"2", key="a")
    )
    [run] = (await claim(backend, cursor=begun())).runs
    assert [row.payload for row in run.rows] == [b"0"]
    await settle(backend, run, Ack())
    assert (await claim(backend, cursor=begun())).runs == []
    await backend.pass_time(3601)
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"1", b"2"]}


async def test_a_timer_is_not_handed_out_behind_another_row(backend: Backend) -> None:
    await backend.insert(
        NewRow("q", b"0", key="a"), NewRow("q", b"1", key="a", timer_id="t"), NewRow("q", b"2", key="a")
    )
    [run] = (await claim(backend, cursor=begun())).runs
    assert [row.payload for row in run.rows] == [b"0"]


async def test_rows_without_a_key_are_not_here(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"0"), NewRow("other", b"1", key="a"))
    assert (await claim(backend, cursor=begun())).runs == []


async def test_every_key_has_its_turn(backend: Backend) -> None:
    await fill(backend, *(f"{n:03}" for n in range(30)))
    cursor, seen = _cursor(), list[str | None]()
    for _ in range(40):
        claimed = await claim(backend, keys=3, cursor=cursor)
        for run in claimed.runs:
            seen.append(run.key)
            await settle(backend, run, Ack())
    assert sorted(map(str, seen)) == [f"{n:03}" for n in range(30)]
    assert cursor.at_rest


async def test_keys_that_are_refilled_for_ever_starve_nobody(backend: Backend) -> None:
    names = [f"{n:03}" for n in range(60)]
    await fill(backend, *names)
    cursor, served = _cursor(), set[str | None]()
    # A round begins anywhere, so the first one may be short; two whole ones follow, with a claim for each end.
    for _ in range(3 * (len(names) // 5 + 1)):
        claimed = await claim(backend, keys=5, cursor=cursor)
        for run in claimed.runs:
            served.add(run.key)
            await settle(backend, run, Ack())
            await fill(backend, str(run.key))
    assert served == set(names)


async def test_a_released_head_is_free_and_its_delivery_uncounted(backend: Backend) -> None:
    await fill(backend, *"aa")
    [run] = (await claim(backend, cursor=begun())).runs
    async with backend.store.connect() as lane:
        assert await lane.release([run.rows[0]]) == {run.lease}
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0", b"1"]}


async def test_a_key_that_was_delivered_before_comes_with_its_head_alone(backend: Backend) -> None:
    await fill(backend, *"aaa")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Retry(0.0, 1))
    assert payloads(await claim(backend, cursor=begun())) == {"a": [b"0"]}


def test_a_settlement_begins_with_the_head_and_ends_with_a_retry() -> None:
    import uuid  # noqa: PLC0415 - only here

    lease = Lease(1, uuid.uuid4())
    with pytest.raises(ValueError, match="begin with that of its head"):
        Settlement.of_run(lease, [])
    with pytest.raises(ValueError, match="head"):
        Settlement.of_run(lease, [(2, Ack())])
    with pytest.raises(ValueError, match="blocks its key"):
        Settlement.of_run(lease, [(1, Retry(0.0, 1)), (2, Ack())])


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "lengths"),
    [
        pytest.param(100, 10**6, [5, 5, 5], id="all fit"),
        pytest.param(8, 10**6, [5, 3], id="whole runs come, and a part of the last"),
        pytest.param(2, 10**6, [2], id="a run is no longer than the claim"),
        pytest.param(100, 5500, [5, 1], id="no row is added to those that have the bytes"),
        pytest.param(100, 1, [1], id="one always comes"),
    ],
)
async def test_a_claim_of_runs_is_bounded(backend: Backend, max_rows: int, max_bytes: int, lengths: list[int]) -> None:
    await backend.insert(*(NewRow("q", b"x" * 1000, key=key) for key in "xyz" for _ in range(5)))
    runs, cursor = list[Run](), _cursor()
    async with backend.store.connect() as lane:
        while not runs:  # the first look begins anywhere, perhaps behind these keys
            claimed = await lane.claim_runs(
                cursor, keys=3, rows_per_key=10, lease_seconds=60.0, max_rows=max_rows, max_bytes=max_bytes
            )
            runs = claimed.runs
        assert [len(run.rows) for run in sorted(runs, key=lambda run: run.key or "")] == lengths
        assert claimed.more
        # Nothing is lost to the bounds: what was left out comes when the keys are free again.
        left, given = 15, runs
        while given:
            await lane.settle(Settlement.of_run(run.lease, [(row.id, Ack()) for row in run.rows]) for run in given)
            left -= sum(len(run.rows) for run in given)
            given = [
                run
                for _ in range(3)
                for run in (await lane.claim_runs(cursor, keys=3, rows_per_key=10, lease_seconds=60.0)).runs
            ]
    assert left == 0


async def test_which_queues_have_keys(backend: Backend) -> None:
    await backend.insert(NewRow("a", b"", key="k"), NewRow("b", b""), NewRow("c", b"", key="k", activate_in=HOUR))
    async with backend.store.connect() as lane:
        assert await lane.queues_with_keys(["a", "b", "d", "c"]) == {"a", "c"}
        assert await lane.queues_with_keys(["b"]) == frozenset()
