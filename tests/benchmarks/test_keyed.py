"""What does not wander in the scenarios with keys."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest

from benchmarks import strategies
from benchmarks.keyed import MOST_ROWS, ORDERINGS, SHARDS, Claimer, rows_with_keys, shards_of
from benchmarks.keys import KEYS
from benchmarks.ordered import NO_KEYS, orderings
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.plots.style import lines_of
from benchmarks.results import Result
from benchmarks.scenario import Bench
from benchmarks.scenarios import SCENARIOS
from benchmarks.strategies import SIZES, check_order
from faststream_outbox.embedded import Database
from faststream_outbox.storage import OutboxRow, StoreLane
from faststream_outbox.storage.ordering import HashShards, Ordering, Run
from tests.benchmarks.test_benchmarks import column


@pytest.fixture
async def bench(outbox_postgres: Database) -> AsyncIterator[Bench]:
    control = await asyncpg.connect(outbox_postgres.dsn)
    yield Bench(outbox_postgres, control, scale="tiny", drivers=("asyncpg",))
    await control.close()


async def only(bench: Bench, name: str) -> Result:
    [result] = await SCENARIOS[name].run(bench)
    return result


async def test_a_claim_of_keys_is_one_statement_and_four_with_advisory_locks(bench: Bench) -> None:
    result = await only(bench, "keys")
    statements = column([result], "statements")
    # BEGIN, the locks, the claim, COMMIT.
    for case, number in statements.items():
        # What finds no key has nothing to lease.
        assert 3 < number <= 4 if case.startswith("AdvisoryLocks") else number == 1, case
    keys, rows = column([result], "keys"), column([result], "rows")
    assert all(0 < keys[case] <= KEYS for case in keys)
    assert all(keys[case] <= rows[case] for case in keys)
    assert {len(points) for points in lines_of(json.loads(json.dumps(result.as_json())), "claim, ms").values()} == {2}


async def test_strategies_take_a_settle_for_each_claim_that_is_not_empty(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    settles: Counter[str] = Counter()

    class CountingClaimer(Claimer):
        def __init__(self, lane: StoreLane, ordering: Ordering, shards: list[int]) -> None:
            super().__init__(lane, ordering, shards)
            self.name = next(name for name, each in ORDERINGS.items() if each is ordering)
            self.alone = len(shards) == SHARDS

        async def settle(self, runs: list[Run]) -> None:
            # One statement for runs, and one for keys that had a single row.
            settles[self.name] += len({len(run.rows) > 1 for run in runs}) if self.alone else 0
            await super().settle(runs)

    monkeypatch.setattr(strategies, "Claimer", CountingClaimer)
    result, sizes = await only(bench, "strategies"), SIZES["tiny"]
    statements, rows = column([result], "statements"), column([result], "rows per claim")
    empty = column([result], "empty claims")
    for name in ORDERINGS:
        case = f"{name}, 1 claimer"
        claims = sizes.backlog / rows[case]
        # With advisory locks, BEGIN and COMMIT come on top; a claim that found no key has nothing to lease.
        claim, empty_claim = (4, 3) if name == "AdvisoryLocks" else (1, 1)
        expected = claim * (claims - empty[case]) + empty_claim * empty[case] + settles[name]
        assert statements[case] * sizes.backlog == pytest.approx(expected)
        assert claims - empty[case] <= settles[name] <= 2 * (claims - empty[case])
    lines = lines_of(json.loads(json.dumps(result.as_json())), "msg/s")
    assert {name: tuple(points) for name, points in lines.items()} == dict.fromkeys(
        [*ORDERINGS, NO_KEYS], sizes.claimers
    )


async def test_each_key_has_one_to_ten_rows(bench: Bench) -> None:
    async with bench.engine("asyncpg") as engine:
        outbox = Outbox(bench, engine, "keyed")
        await outbox.create()
        await outbox.load(1_000, *rows_with_keys("a"))
        await outbox.load(1_000, *rows_with_keys("b"))
    counts = await bench.control.fetch("SELECT count(*) AS rows FROM keyed GROUP BY entity_key")
    assert {each["rows"] for each in counts} == set(range(1, MOST_ROWS + 1))


def test_the_shards_are_divided_among_the_claimers() -> None:
    for claimers in (1, 4, 16):
        shares = [shards_of(each, claimers) for each in range(claimers)]
        assert sorted(shard for share in shares for shard in share) == list(range(16))
        assert {len(share) for share in shares} == {16 // claimers}
    assert [each.shards for each in orderings("HashShards", 2) if isinstance(each, HashShards)] == [
        shards_of(0, 2),
        shards_of(1, 2),
    ]
    assert orderings(NO_KEYS, 2) == [None, None]


def test_a_measurement_out_of_order_is_refused() -> None:
    first = OutboxRow(1, QUEUE, "a", b"", None, None, 0, 0, None, None, 0, 0, 0, None, None)
    other, second = replace(first, id=2, entity_key="b"), replace(first, id=3)
    check_order([other, first, second])
    with pytest.raises(AssertionError, match="Row 1 of key a came after row 3"):
        check_order([second, other, first])
