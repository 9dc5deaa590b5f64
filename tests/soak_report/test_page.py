"""The report runs every soak that is asked for, and the page says what they did."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.order.settings import STRATEGIES
from tests.relay.faults.settings import ENDPOINTS
from tests.soak.__main__ import BROKEN, INTERRUPTED, PASSED
from tests.soak.checker import Violation
from tests.soak.round import Result
from tests.soak_report import __main__ as command
from tests.soak_report import jobs
from tests.soak_report.page import Run, render
from tests.upgrade.older import VERSIONS

TIMES = ["--minutes", "2", "--relay-minutes", "0.5", "--seed", "41"]


def result(seed: int, *, broken: int = 0) -> Result:
    counts = Counter({"rows inserted": 600, "leases found lost": 7})
    faults = Counter({"workers killed": 2, "producers killed": 1, "target paused": 4})
    return Result(seed, [Violation("order", f"row {n}", "late") for n in range(broken)], counts, faults, 0.1, {})


def cells(page: str, what: str) -> list[str]:
    [line] = [line for line in page.splitlines() if line.startswith(f"| {what} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_numbers_of_all_rounds_are_added_up() -> None:
    runs = [
        Run("keys, HeadLease", ["--order", "HeadLease"], 120.0, [result(41), result(42, broken=3)]),
        Run("relay to kafka", ["--relay", "kafka"], lacks="java is missing"),
    ]
    page = render(runs, command="make soak-report", state="the commit abc of 2026-01-01")
    assert "`make soak-report` wrote this page, on the commit abc of 2026-01-01: 0.0 hours, 2 rounds, 3 viol" in page
    numbers = dict(zip(cells(page, "what"), cells(page, "keys, HeadLease"), strict=True))
    assert numbers == {
        "what": "keys, HeadLease",
        "minutes": "2.0",
        "seeds": "41 to 42",
        "messages": "1,200",
        "processes killed": "6",
        "paused": "0",
        "connections cut": "0",
        "Postgres crashes": "0",
        "broker outages": "8",
        "leases lost": "14",
        "suspects": "0",
        "violations": "**3**",
    }
    assert cells(page, "relay to kafka")[1] == "not run: java is missing"
    assert 'make soak ARGS="--order HeadLease"' in page


@pytest.mark.parametrize(("broken", "status"), [(0, PASSED), (1, BROKEN)])
def test_every_strategy_version_and_broker_is_run_for_as_long_as_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: int, status: int
) -> None:
    asked: list[list[str]] = []

    def soak(arguments: Sequence[str], _: Console, results: list[Result]) -> None:
        if "kafka" in arguments:
            raise SystemExit("Kafka: java is missing")
        asked.append(list(arguments))
        results.append(result(41, broken=broken))

    monkeypatch.setattr(jobs, "soak", soak)
    page = tmp_path / "soak.md"
    assert command.main([*TIMES, "--page", str(page)]) == status
    long, short = ["--seconds", "120", "--seed", "41"], ["--seconds", "30", "--seed", "41"]
    assert asked == [
        long,
        *(["--order", strategy, *long] for strategy in STRATEGIES),
        ["--order", "mixed", "--lease", "60", *long],
        *(["--beside", sha[:7], *short] for sha in VERSIONS.values()),
        *(["--relay", name, *short] for name in ENDPOINTS if name != "kafka"),
        *(["--relay", "redis", "--beside", sha[:7], *short] for sha in VERSIONS.values()),
    ]
    assert 'make soak-report ARGS="--minutes 2 --relay-minutes 0.5 --seed 41"' in page.read_text()
    assert "not run: Kafka" in cells(page.read_text(), "relay to kafka")[1]


def test_a_soak_that_fails_itself_is_a_violation_and_the_others_are_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def soak(arguments: Sequence[str], _: Console, results: list[Result]) -> None:
        if "redis" in arguments:
            raise TimeoutError("worker12 did not start within 60 s.")
        results.append(result(41))

    monkeypatch.setattr(jobs, "soak", soak)
    page = tmp_path / "soak.md"
    assert command.main([*TIMES, "--page", str(page)]) == BROKEN
    assert cells(page.read_text(), "relay to redis")[-1] == "**1**"
    assert cells(page.read_text(), "relay to nats")[-1] == "**0**"


def test_a_report_runs_as_many_soaks_at_once_as_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_side_by_side(plans: Sequence[Run], jobs: int, _: Console) -> list[Run]:
        assert jobs == 4
        return [Run(plan.what, plan.arguments, 60.0, [result(41)]) for plan in plans]

    monkeypatch.setattr(command, "run_side_by_side", run_side_by_side)
    page = tmp_path / "soak.md"
    assert command.main([*TIMES, "--jobs", "4", "--page", str(page)]) == PASSED
    assert 'make soak-report ARGS="--minutes 2 --relay-minutes 0.5 --seed 41 --jobs 4"' in page.read_text()
    with pytest.raises(SystemExit):
        command.main([*TIMES, "--jobs", "0"])


def test_the_page_of_proofs_gets_the_totals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, proof = tmp_path / "soak.md", tmp_path / "proof.md"
    proof.write_text("# Proof\n\n<!-- soak -->\nan older one\n<!-- end of soak -->\n\nThe rest.\n")
    monkeypatch.setattr(command, "PAGE", page)
    monkeypatch.setattr(command, "PROOF", proof)
    monkeypatch.setattr(command, "run_in_turn", lambda plans, _: [Run(plans[0].what, [], 3600.0, [result(41)])])
    assert command.main([*TIMES, "--page", str(page)]) == PASSED
    written = proof.read_text()
    assert "**1.0 hours** of 1 soaks, 600 messages, 3 processes killed" in written
    assert "an older one" not in written
    assert written.endswith("<!-- end of soak -->\n\nThe rest.\n")


def test_an_interrupted_report_leaves_the_page_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def soak(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "soak", soak)
    assert command.main([*TIMES, "--page", str(tmp_path / "soak.md")]) == INTERRUPTED
    assert not (tmp_path / "soak.md").exists()


def test_the_page_of_the_documentation_has_every_soak_and_no_violation() -> None:
    page = command.PAGE.read_text()
    for plan in command.plans(command._parser().parse_args(TIMES)):
        assert cells(page, plan.what)[-1] == "**0**"
