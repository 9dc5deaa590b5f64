"""Where the contestants of a scenario meet: who is there, and where each one's orders go."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from benchmarks.peers.child import Child
from benchmarks.peers.contestants import Entry
from benchmarks.scenario import Bench


class Stage:
    """The programs of a scenario. They run on after it, unless it failed: nobody knows then what they are at."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self.bench.programs.end()

    async def child(self, entry: Entry, number: int = 0) -> Child:
        """Return the program of an entry, or one more of them."""
        return await self.bench.programs.child(entry, self.bench.database.dsn, number)

    async def present(self, *entries: Entry, processes: int = 1) -> tuple[list[Entry], str]:
        """Tell which of them can take part, and what is to be said of the others.

        Their programs are started side by side, so many of each, because what they import takes its time.
        """
        there = [entry for entry in entries if entry.contestant.installed]
        await self._start({Entry(entry.contestant) for entry in there}, processes)
        there = [entry for entry in there if not entry.uvloop or (await self._plain(entry)).hello["uvloop"]]
        await self._start(there, processes)
        absent = [str(entry) for entry in entries if entry not in there]
        if not absent:
            return there, ""
        left_out = f" Not installed, so left out: {'; '.join(absent)}. `make peers` installs them."
        self.bench.say(left_out.strip())
        return there, left_out

    async def _start(self, entries: Iterable[Entry], processes: int) -> None:
        await asyncio.gather(*(self.child(entry, number) for entry in entries for number in range(processes)))

    async def _plain(self, entry: Entry) -> Child:
        return await self.child(Entry(entry.contestant))
