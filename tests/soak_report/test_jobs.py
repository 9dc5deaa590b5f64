"""Soaks that run side by side: each in a process of its own, none disturbed by another."""

import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tests.servers.process import Process, free_port
from tests.soak.checker import Violation
from tests.soak.round import Result
from tests.soak_report.jobs import run_side_by_side
from tests.soak_report.page import Run
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def meet(plan: Run, console: Console) -> Run:
    """Come back when as many as the plan says are at work together."""
    directory, together = Path(plan.arguments[0]), int(plan.arguments[1])
    (directory / plan.what).touch()
    deadline = time.monotonic() + 60
    while len(list(directory.iterdir())) < together and time.monotonic() < deadline:
        time.sleep(0.02)
    console.print(f"{plan.what} met {len(list(directory.iterdir()))}")
    return Run(plan.what, plan.arguments, 1.0, [Result(os.getpid(), [], Counter(), Counter(), 0.0, {})])


def answer_at_length(plan: Run, _: Console) -> Run:
    """Answer with more than a pipe holds."""
    violations = [Violation("order", f"row {number}", "late" * 100) for number in range(2000)]
    return Run(plan.what, plan.arguments, 1.0, [Result(7, violations, Counter(), Counter(), 0.0, {})])


def die(plan: Run, console: Console) -> Run:
    """Die like a process that the kernel killed, if the plan says it."""
    if plan.arguments:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer_at_length(plan, console)


def find_ports(plan: Run, console: Console) -> Run:
    """Ask for many ports, keep them until the others have theirs, and answer with them."""
    ports = Counter(str(free_port()) for _ in range(300))
    meet(plan, console)
    return Run(plan.what, plan.arguments, 1.0, [Result(7, [], ports, Counter(), 0.0, {})])


def test_so_many_soaks_run_at_the_same_time_and_the_output_of_each_stays_together(tmp_path: Path) -> None:
    plans = [Run(f"soak{number}", [str(tmp_path), "3"]) for number in range(4)]
    console = Console(record=True, width=80)
    runs = run_side_by_side(plans, 3, console, meet)
    assert [run.what for run in runs] == ["soak0", "soak1", "soak2", "soak3"]
    assert len({run.results[0].seed for run in runs} - {os.getpid()}) == 4, "each has a process of its own"
    lines = console.export_text().splitlines()
    for number in range(4):
        [title] = [at for at, line in enumerate(lines) if f" soak{number} ─" in line]
        assert lines[title + 1].startswith(f"soak{number} met ")
    assert "soak0 met 3" in lines


def test_an_answer_may_be_longer_than_a_pipe() -> None:
    [run] = run_side_by_side([Run("long", [])], 2, Console(quiet=True), answer_at_length)
    assert run.violations == 2000


def test_a_soak_whose_process_is_killed_is_a_violation_and_the_others_go_on() -> None:
    dead, alive = run_side_by_side([Run("dead", ["die"]), Run("alive", [])], 2, Console(quiet=True), die)
    assert [violation.text for result in dead.results for violation in result.violations] == [
        "the process of the soak ended with exit status -9"
    ]
    assert alive.violations == 2000


@pytest.mark.skipif(sys.platform != "linux", reason="holds shares of ports by names of Linux")
def test_soaks_side_by_side_never_get_the_same_port(tmp_path: Path) -> None:
    plans = [Run(name, [str(tmp_path), "2"]) for name in ("one", "two")]
    one, two = (set(run.results[0].counts) for run in run_side_by_side(plans, 2, Console(quiet=True), find_ports))
    assert (len(one), len(two)) == (300, 300), "nor does one of them get it twice"
    assert one & two == set()


async def test_a_report_that_is_ended_ends_its_soaks_and_their_servers(tmp_path: Path) -> None:
    log = tmp_path / "output"
    options = ["--jobs", "2", "--page", str(tmp_path / "soak.md")]
    report = Process(sys.executable, "-m", "tests.soak_report", *options, log=log, cwd=ROOT)
    try:
        [directory] = await until(lambda: re.findall(r"output is in (\S+) until", log.read_text()))
        logs = [Path(directory) / "0.log", Path(directory) / "1.log"]
        await until(lambda: [each.exists() and "rows inserted" in each.read_text() for each in logs], all)
        everything = psutil.Process(report.pid).children(recursive=True)
        await report.stop(seconds=90)
    finally:
        report.kill()
    _, left = psutil.wait_procs(everything, timeout=10)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    assert "Interrupted" in log.read_text()
    assert not (tmp_path / "soak.md").exists()
    assert not any(each.parent.exists() for each in logs)
