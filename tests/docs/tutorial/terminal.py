"""A terminal of a reader: a shell that keeps its directory and variables from one command to the next."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_SECONDS = 60.0
_BETWEEN_LOOKS = 0.05
_LINES_OF_AN_ERROR = 40
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Terminal:
    """Runs what is typed into it, and keeps what is printed.

    ```python
    terminal = Terminal("3: service", home)
    terminal.type("uvicorn app:app")
    terminal.wait_for(["… startup complete."])
    terminal.interrupt()
    ```
    """

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self._output = home / f"{name or 'own'}.output"
        kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
        with self._output.open("wb") as output:
            self._shell = subprocess.Popen(
                ["/bin/sh"],
                cwd=home,
                # A terminal shows each line when it is printed; a file would get it late.
                env=kept | {"HOME": str(home), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._commands = 0
        # The numbers of the lines that have been waited for.
        self._taken: set[int] = set()

    def type(self, text: str) -> None:
        """Send lines to the shell. `wait_for` then looks only at what is printed from here on."""
        self._taken = set(range(len(self.output.splitlines())))
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()

    def run(self, text: str) -> str:
        """Run commands to their end, and return what they printed."""
        self._commands += 1
        begin, end = f"<begin {self._commands}>", f"<end {self._commands}>"
        self.type(f'echo "{begin}"\n{text}\necho "{end}"\n')
        self._until(lambda: end in self.output, f"{text} does not end")
        return self.output.partition(f"{begin}\n")[2].partition(end)[0]

    def wait_for(self, lines: list[str]) -> None:
        """Wait until these lines were printed, in this order. Others may stand between them; none serves twice."""
        self._until(lambda: self._take(lines), f"it does not print {lines}")

    def interrupt(self) -> None:
        """Press Ctrl-C, and wait until the shell is free."""
        for process in (running := self._running()):
            process.send_signal(signal.SIGINT)
        _, left = psutil.wait_procs(running, timeout=_SECONDS)
        assert not left, f"{self.name}: {left} do not end after Ctrl-C.\n{self._end}"

    def close(self) -> None:
        """End everything that still runs here."""
        for process in (running := self._running()):
            process.kill()
        psutil.wait_procs(running, timeout=_SECONDS)
        self._shell.kill()
        self._shell.communicate(timeout=_SECONDS)

    @property
    def output(self) -> str:
        return _COLOURS.sub("", self._output.read_text(errors="replace"))

    @property
    def _end(self) -> str:
        """What an error shows: tracebacks of handlers that fail on purpose would hide it."""
        return "\n".join(self.output.splitlines()[-_LINES_OF_AN_ERROR:])

    def _running(self) -> list[psutil.Process]:
        """Return what the shell waits for. What those started themselves is theirs to end."""
        return list(psutil.Process(self._shell.pid).children())

    def _take(self, lines: list[str]) -> bool:
        printed = self.output.splitlines()
        taken: list[int] = []
        for line in lines:
            after = taken[-1] + 1 if taken else 0
            places = (place for place in range(after, len(printed)) if place not in self._taken)
            found = next((place for place in places if matches(line, printed[place])), None)
            if found is None:
                return False
            taken.append(found)
        self._taken.update(taken)
        return True

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert self._shell.poll() is None, f"{self.name}: the shell has ended.\n{self._end}"
            assert time.monotonic() < deadline, f"{self.name or 'own terminal'}: {otherwise}.\n{self._end}"
            time.sleep(_BETWEEN_LOOKS)


def matches(expected: str, printed: str) -> bool:
    """Return whether this was printed; `…` stands for anything within a line, and alone in a line for any lines."""
    pattern = re.escape(expected.rstrip())
    pattern = re.sub(r"(?m)^…$\n?", r"(?:.*\\n)*?", pattern.replace("\\\n", "\n")).replace("…", ".*")
    return re.fullmatch(pattern, printed.rstrip()) is not None
