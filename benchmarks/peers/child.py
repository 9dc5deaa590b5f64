"""A contestant's program, running, and what takes its orders there."""

import asyncio
import json
import os
import tempfile
from asyncio.subprocess import PIPE, Process
from typing import IO, Any, Final

from benchmarks.measure import PATIENCE
from benchmarks.peers.contestants import ROOT, Contestant, Entry

# How many bytes of a program's log an error quotes.
_TOLD: Final = 3_000
# As `serving.py` has it, which is not to be imported from here.
_DSN_VARIABLE: Final = "PEERS_DSN"
_IN_EACH: Final = {"PYTHONDONTWRITEBYTECODE": "1"}
# How long a program may take to end, when there is no more to do.
_ENDS_IN: Final = 10.0
# An answer may hold the times of thousands of messages.
_LONGEST_ANSWER: Final = 2**26


class Child:
    """One process of a contestant."""

    def __init__(self, contestant: Contestant, dsn: str, *, uvloop: bool) -> None:
        self._contestant = contestant
        self._dsn = dsn
        self._arguments = ["--table", contestant.table, *(["--uvloop"] if uvloop else [])]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process: Process | None = None
        self.cpu = 0.0
        self.hello: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the program, and make sure that it is the contestant that was meant."""
        contestant = self._contestant
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PG"))}
        self._process = await asyncio.create_subprocess_exec(
            contestant.python,
            "-P",
            str(ROOT / "benchmarks" / "peers" / "programs" / contestant.program),
            *self._arguments,
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._log,
            env={**environment, **_IN_EACH, "PYTHONPATH": contestant.path, _DSN_VARIABLE: self._dsn},
            limit=_LONGEST_ANSWER,
        )
        self.hello = await self._answer()
        if not contestant.ours and self.hello["version"] != contestant.version:
            raise AssertionError(
                f"{contestant.name} is {self.hello['version']} here, not {contestant.version}: make peers"
            )
        if contestant.program == "outbox.py" and contestant.ours != self.hello["origin"].startswith(
            str(ROOT / "faststream_outbox")
        ):
            raise AssertionError(f"{contestant.name} was imported from {self.hello['origin']}.")

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Give an order, and wait for it to be carried out."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        answer = await self._answer()
        if "error" in answer:
            raise RuntimeError(f"{self._contestant.name} failed to {do}:\n{answer['error']}{self._told()}")
        self.cpu = answer["cpu"]
        return answer

    async def end(self) -> None:
        """Let the program end; one that does not is killed."""
        if self._process is not None:
            await self._end(self._process)
        self._log.close()  # last: an error of a waiting caller quotes it

    @staticmethod
    async def _end(process: Process) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_ENDS_IN):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            text = f"{self._contestant.name} has not answered for {PATIENCE:.0f} s.{self._told()}"
            raise TimeoutError(text) from error
        if not line:
            raise RuntimeError(f"{self._contestant.name} has ended.{self._told()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _told(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TOLD))
        return f"\n{self._log.read().decode(errors='replace')}"


class Programs:
    """Those that run. A scenario leaves them to the next one, because what they import takes its time."""

    def __init__(self) -> None:
        self._children: dict[tuple[Contestant, str, bool, int], Child] = {}
        self._started: dict[Child, asyncio.Task[None]] = {}

    async def child(self, entry: Entry, dsn: str, number: int = 0) -> Child:
        """Return the program of an entry, or one more of them; it is started when it is first asked for."""
        which = entry.contestant, dsn, entry.uvloop, number
        if which not in self._children:
            child = self._children[which] = Child(entry.contestant, dsn, uvloop=entry.uvloop)
            self._started[child] = asyncio.create_task(child.start())
        child = self._children[which]
        await self._started[child]
        return child

    async def end(self) -> None:
        """Let all of them end."""
        started, self._started, self._children = self._started, {}, {}
        await asyncio.gather(*started.values(), return_exceptions=True)
        await asyncio.gather(*(child.end() for child in started), return_exceptions=True)
