"""How a run stands to P1 to P12, and what it has to measure for that."""

import pytest

from benchmarks.__main__ import chosen, parse
from benchmarks.aims import AIMS, CLAIM_READY, DRAIN_PGQUEUER, TITLES, Aim, summary
from benchmarks.results import Result
from benchmarks.scenarios import SCENARIOS


def result(*values: float, aim: Aim = CLAIM_READY) -> Result:
    return Result("claims", {}, "", [aim.target("asyncpg", value) for value in values])


def test_there_are_twelve_and_each_has_a_scenario() -> None:
    assert list(TITLES) == [f"P{number}" for number in range(1, 13)]
    assert {aim.title for aim in AIMS} == set(TITLES)
    assert {aim.scenario for aim in AIMS} <= set(SCENARIOS)
    assert len({(aim.title, aim.respect) for aim in AIMS}) == len(AIMS)


def test_the_worst_of_several_is_told() -> None:
    told = summary({"claim": [result(1.1), result(1.2, 1.0)]})
    assert "| P6: claim of 100 rows, to one of 10,000 ready | 1 M ready | ≤ 1.3 | 1.20 | met |" in told
    assert "|  | 1 M future timers | ≤ 1.3 |  | not measured |" in told
    told = summary({"claim": [result(1.4, 1.2)]})
    assert "| 1 M ready | ≤ 1.3 | 1.40 | **MISSED** |" in told


def test_at_least_is_the_other_way_round() -> None:
    told = summary({"peers-drain": [result(2.0, 1.1, aim=DRAIN_PGQUEUER)]})
    assert "| to pgqueuer at its best | ≥ 1.2 | 1.10 | **MISSED** |" in told


def test_what_was_not_asked_for_is_not_told() -> None:
    assert "P1:" not in summary({"claim": []})
    assert summary({"drain": []}) == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [name for name in SCENARIOS if name in {aim.scenario for aim in AIMS}]),
        (["--full"], list(SCENARIOS)),
        (["--only", "drain,scale"], ["drain", "scale"]),
    ],
)
def test_quick_is_what_is_aimed_at_and_full_is_everything(arguments: list[str], expected: list[str]) -> None:
    assert chosen(parse(arguments)) == expected
