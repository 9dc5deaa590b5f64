"""The soaks of a report: one after the other, or several side by side, each in a process of its own."""

import multiprocessing
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

from tests.soak.__main__ import soak
from tests.soak.checker import Violation
from tests.soak.report import show_results
from tests.soak.round import Result
from tests.soak_report.page import Run

# Runs one soak, shows on the console what happens, and returns what it did.
RunPlan = Callable[[Run, Console], Run]

# A new interpreter for each: it shares no event loop, signal handler or thread with the others.
_SPAWN: Final = multiprocessing.get_context("spawn")
# For an interrupted soak to end its servers and processes.
END_SECONDS: Final = 60.0


def run_plan(plan: Run, console: Console) -> Run:
    """Run one soak. A soak that fails itself counts as a violation."""
    results: list[Result] = []
    began = time.monotonic()
    try:
        soak(plan.arguments, console, results)
    except SystemExit as lacking:
        console.print(f"Not run: {lacking}")
        return Run(plan.what, plan.arguments, lacks=str(lacking))
    except Exception as error:  # noqa: BLE001 - the others are run, and the page says that this one failed
        console.print_exception()
        results.append(_failure(f"the soak itself failed: {error!r}"))
    show_results(console, results)
    return Run(plan.what, plan.arguments, time.monotonic() - began, results)


def run_in_turn(plans: Sequence[Run], console: Console, run: RunPlan = run_plan) -> list[Run]:
    """Run the soaks one after the other in this process, and show each while it runs."""
    runs = []
    for plan in plans:
        console.rule(plan.what)
        runs.append(run(plan, console))
    return runs


def run_side_by_side(plans: Sequence[Run], jobs: int, console: Console, run: RunPlan = run_plan) -> list[Run]:
    """Run so many soaks at the same time; show the output of each when it ends."""
    waiting = list(enumerate(plans))
    running: list[_Job] = []
    runs: dict[int, Run] = {}
    with tempfile.TemporaryDirectory(prefix="outbox-soaks-") as directory:
        console.print(f"{jobs} at a time; their output is in {directory} until they end.", soft_wrap=True)
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    number, plan = waiting.pop(0)
                    running.append(_start(number, plan, Path(directory) / f"{number}.log", run))
                    console.print(f"Started: {plan.what}")
                # Readable when a job answers, and when it died without an answer.
                answered = wait([job.answer for job in running])
                for job in [job for job in running if job.answer in answered]:
                    runs[job.number] = job.end()
                    running.remove(job)
                    console.rule(job.plan.what)
                    console.print(job.log.read_text(), markup=False, highlight=False, soft_wrap=True)
        finally:
            for job in running:
                job.process.terminate()
            for job in running:
                job.wait_until_gone()
    return [runs[number] for number in range(len(plans))]


@dataclass
class _Job:
    """A soak in a process of its own."""

    number: int
    plan: Run
    log: Path
    process: SpawnProcess
    answer: Connection
    began: float

    def end(self) -> Run:
        """Return what it did; a process that died without an answer counts as a violation."""
        try:
            run: Run = self.answer.recv()
            self.process.join()
        except EOFError:
            self.process.join()
            failure = _failure(f"the process of the soak ended with exit status {self.process.exitcode}")
            run = Run(self.plan.what, self.plan.arguments, time.monotonic() - self.began, [failure])
        self.answer.close()
        self.process.close()
        return run

    def wait_until_gone(self) -> None:
        """Let it end its servers and processes; kill it and them if that takes too long."""
        self.process.join(END_SECONDS)
        if self.process.is_alive() and self.process.pid is not None:
            everything = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            _kill(everything)


def _start(number: int, plan: Run, log: Path, run: RunPlan) -> _Job:
    answer, give = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_be_job, args=(plan, log, run, give), name=plan.what)
    process.start()
    # Only the process holds the other end: when it dies, reading ends too.
    give.close()
    return _Job(number, plan, log, process, answer, time.monotonic())


def _be_job(plan: Run, log: Path, run: RunPlan, give: Connection) -> None:
    # Ctrl-C at a terminal reaches us as well as the report, which then sends SIGTERM: one of both is enough.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with log.open("w", buffering=1) as file:
        console = Console(file=file, width=120)
        try:
            give.send(run(plan, console))
        except KeyboardInterrupt:
            # A process that was being started just now is in no list of the soak's.
            _kill(psutil.Process().children(recursive=True), only="multiprocessing")
            console.print("Interrupted.")


def _kill(processes: Iterable[psutil.Process], only: str = "") -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if only in " ".join(process.cmdline()):
                process.kill()


def _failure(text: str) -> Result:
    return Result(-1, [Violation("crash", "", text)], Counter(), Counter(), 0.0, {})
