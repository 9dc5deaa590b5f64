import asyncio
import io
import json
import math
from collections.abc import Iterable

import asyncpg
import pytest
from rich.console import Console

from benchmarks.__main__ import command, measure, parse
from benchmarks.aims import AIMS
from benchmarks.gate import Gate
from benchmarks.measure import Spread, Usage, ratios
from benchmarks.results import Result, Target, Value, cell
from benchmarks.scenario import Bench, Scenario
from benchmarks.scenarios import SCENARIOS
from tests.servers.kafka import Kafka, KafkaElsewhere
from tests.servers.plugin import need
from tests.servers.redis import Redis


def middle(value: Value) -> float:
    assert value is not None
    return value.median if isinstance(value, Spread) else value


def column(results: Iterable[Result], name: str) -> dict[str, float]:
    return {case: middle(values[name]) for result in results for case, values in result.lines.items() if name in values}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_scenario_measures_something(bench: Bench, name: str, request: pytest.FixtureRequest) -> None:
    if name == "relay" and KafkaElsewhere.given() is None:
        need(Kafka, request)
    if name == "memory":
        need(Redis, request)
    results = await SCENARIOS[name].run(bench)
    assert results
    for result in results:
        # Beside ours there is something else, unless the peers are not installed here.
        assert len(result.lines) > (0 if "so left out" in result.note else 1)
        for values in result.lines.values():
            assert all(math.isfinite(middle(value)) and middle(value) >= 0 for value in values.values() if value)
        assert result.markdown().count("\n| ") == len(result.lines) + 2
        assert json.loads(json.dumps(result.as_json()))["title"] == result.title
    targets = {(target.aim, target.respect) for result in results for target in result.targets if target.aim}
    aims = {(aim.title, aim.respect) for aim in AIMS if aim.scenario == name}
    assert targets <= aims
    # Those of peers need the peers; a backlog of a million rows is not for tests.
    if not name.startswith("peers-") and name != "ordered":
        assert targets == aims


async def test_a_drain_takes_two_statements_a_batch(bench: Bench) -> None:
    results = await SCENARIOS["drain"].run(bench)
    whole, parts = results
    assert column([whole], "statements") == pytest.approx(dict.fromkeys(whole.lines, 2 / 100))
    assert all(0 < share <= 1 for share in column([whole], "HOT").values())
    wal = column([parts], "WAL B")
    # No upper bound: the log is the whole server's, which may be busy with other things.
    assert all(wal[case] > (256 if case.endswith("insert") else 20) for case in wal)


async def test_a_batch_is_settled_by_one_statement(bench: Bench) -> None:
    statements = column(await SCENARIOS["settle"].run(bench), "statements")
    assert {case: count for case, count in statements.items() if "row by row" in case and count != 1} == {}
    assert {case: count for case, count in statements.items() if "batches" in case and count != 1 / 100} == {}


async def test_an_insert_is_one_statement_between_begin_and_commit(bench: Bench) -> None:
    single, several, batch = await SCENARIOS["insert"].run(bench)
    expected = {case: 1 if "autocommit" in case else 3 for case in single.lines}
    assert column([single], "statements") == expected
    assert column([several], "statements") == expected
    assert column([batch], "statements") == pytest.approx({case: count / 1000 for case, count in expected.items()})


async def test_claims_are_compared_with_the_first_table(bench: Bench) -> None:
    for result in await SCENARIOS["claim"].run(bench):
        first = next(iter(result.lines))
        assert cell(result.lines[first]["ratio"]) == "1.00"
        assert {target.respect for target in result.targets} == {"1 M ready", "1 M future timers", "100 K live leases"}


def test_a_spread_is_the_median_and_the_middle_half() -> None:
    assert Spread.of([5, 1, 2, 4, 3]) == Spread(3, 2, 4, 5)
    assert Spread.of([7]) == Spread(7, 7, 7, 1)
    assert ratios([2, 30, None], [1, 10, 1]) == Spread(2.5, 2.25, 2.75, 2)


def test_usage_that_was_not_seen_stays_unknown() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(1, 2, 3, 4, 5) == Usage(2, 4, 6, 8, 10)
    assert (Usage() + Usage(postgres_us=None)).postgres_us is None


def test_a_target_is_held_or_missed() -> None:
    assert Target("claim", 1.2, at_most=1.3).holds
    assert not Target("claim", 1.4, at_most=1.3).holds
    assert str(Target("churn", 0.5, at_least=0.9)) == "churn: 0.50, target ≥ 0.9: MISSED"


async def test_a_gate_holds_claims_back_and_undoes_nothing(bench: Bench) -> None:
    await bench.control.execute("CREATE TABLE work (id int)")
    claimer = await asyncpg.connect(bench.database.dsn)
    async with Gate(bench.control, "work") as gate:
        claim = asyncio.create_task(claimer.execute("SELECT FROM work FOR UPDATE"))
        await gate.wait_for(1)
        await bench.control.execute("CREATE TABLE counters ()")
        assert not claim.done()
    await claim
    assert await bench.control.fetchval("SELECT to_regclass('counters')")
    await claimer.close()


def test_the_command_can_be_repeated_elsewhere() -> None:
    options = parse(["--full", "--only", "claim,drain", "--dsn", "postgresql://me:secret@db/mine", "--seed", "7"])
    assert command(options) == 'make bench ARGS="--full --only claim,drain --dsn DSN --seed 7"'


async def test_a_scenario_that_fails_costs_nobody_elses_results(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Bench) -> list[Result]:
        raise RuntimeError("no such luck")

    result = Result("a second", {"one": {"s": 1.0}}, "")

    async def wait(bench: Bench) -> list[Result]:
        assert await bench.control.fetchval("SELECT 1") == 1
        return [result]

    monkeypatch.setitem(SCENARIOS, "claim", Scenario("claim", "", fail))
    monkeypatch.setitem(SCENARIOS, "drain", Scenario("drain", "", wait))
    told = Console(file=io.StringIO())
    assert await measure(bench.database, parse(["--only", "claim,drain"]), told) == {"claim": [], "drain": [result]}
    assert isinstance(told.file, io.StringIO)
    assert "no such luck" in told.file.getvalue()
    assert "1 of 2: claim, 0 s, failed" in told.file.getvalue()


def test_one_name_stands_for_all_scenarios_of_the_peers() -> None:
    names = parse(["--only", "peers,claim"]).only
    assert names == [*(name for name in SCENARIOS if name.startswith("peers-")), "claim"]
    assert len(names) > 5


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "claim,drian"], "there is no drian"),
        (["--seconds", "0"], "from a tenth of a second"),
        (["--dsn", "postgresql://db", "--bin-dir", "bin"], "choose one of them"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert complaint in capsys.readouterr().err
