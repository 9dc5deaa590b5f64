"""The processes of a round: started, signalled by their ids, and none left behind."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, Literal, Self

from tests.soak.process import run_process
from tests.soak.settings import Settings

Role = Literal["worker", "producer"]

# A server of forks that has imported everything already: a new process costs milliseconds, and it inherits neither
# the threads nor the exit handlers of whoever runs the soak.
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["tests.order.all_processes", "tests.relay.faults.worker", "tests.soak.worker", "asyncpg", "psycopg"]
)

STOP_SECONDS: Final = 15.0
# A process of an older version imports all that it needs, and the machine may be busy.
START_SECONDS: Final = 60.0


@dataclass
class Member:
    """One process."""

    role: Role
    name: str
    process: BaseProcess
    log: Path

    @property
    def pid(self) -> int:
        """Its id."""
        pid = self.process.pid
        assert pid is not None
        return pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is still there to get it."""
        if self.process.is_alive():
            os.kill(self.pid, number)

    def wait_until_it_listens(self) -> None:
        """Wait for a process that was just started to handle the signals that are meant for it."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.is_alive() and not self.log.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} did not start within {START_SECONDS:.0f} s.")
            time.sleep(0.01)


class ProcessGroup:
    """All processes of a round."""

    def __init__(self, settings: Settings) -> None:
        self.members: list[Member] = []
        self._settings = settings
        self._started = 0

    def start(self, role: Role) -> Member:
        """Add a process; each has a name of its own, also one that replaces another."""
        self._started += 1
        name = f"{role}{self._started}"
        make = self._settings.worker if role == "worker" else self._settings.producer
        process = _FORKS.Process(target=run_process, args=(make, self._settings, name), name=name, daemon=True)
        process.start()
        member = Member(role, name, process, self._settings.directory / name)
        self.members.append(member)
        return member

    def replace(self, member: Member) -> Member:
        """Kill a process without warning and start another of its kind."""
        member.signal(signal.SIGKILL)
        member.process.join(STOP_SECONDS)
        self.members.remove(member)
        member.process.close()
        return self.start(member.role)

    def calm_down(self) -> None:
        """Tell all to be quick and do no more harm."""
        self._tell(self.members, signal.SIGUSR1)

    def stop(self, role: Role) -> list[str]:
        """Let all of a role finish; return what is to be said of those that did not."""
        leaving = [member for member in self.members if member.role == role]
        self._tell(leaving, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        complaints = []
        for member in leaving:
            member.process.join(max(0.0, deadline - time.monotonic()))
            if member.process.is_alive():
                complaints.append(f"{member.name} did not stop when it was told to")
                member.signal(signal.SIGKILL)
                member.process.join(STOP_SECONDS)
            elif member.process.exitcode != 0:
                complaints.append(f"{member.name} ended with exit status {member.process.exitcode}")
            self.members.remove(member)
            member.process.close()
        return complaints

    def _tell(self, members: Iterable[Member], number: signal.Signals) -> None:
        for member in members:
            member.wait_until_it_listens()
            member.signal(number)

    def __enter__(self) -> Self:
        for _ in range(self._settings.workers):
            self.start("worker")
        for _ in range(self._settings.producers):
            self.start("producer")
        # On a machine that is busy a short round would be over before it began.
        for member in self.members:
            member.wait_until_it_listens()
        return self

    def __exit__(self, *_: object) -> None:
        for member in list(self.members):
            member.signal(signal.SIGKILL)
            member.process.join(STOP_SECONDS)
            member.process.close()
        self.members.clear()
