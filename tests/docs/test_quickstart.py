"""The quickstart as printed: its files are written into an empty directory, and its commands are run there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
FILES = dict(re.findall(r'^```python title="([\w.]+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE))
SHELL = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in SHELL for line in block.splitlines()]
PATIENCE = 60.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory with the three files; the server's account may enter the one above its own."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-quickstart-"))
    directory.chmod(0o755)
    for name, text in FILES.items():
        (directory / name).write_text(text)
    yield directory
    shutil.rmtree(directory)


class Terminal:
    """A shell in the directory; what its commands print goes to a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        left_out = {"DATABASE_URL", "OUTBOX_TEST_DSN"}
        self._environment = {name: value for name, value in os.environ.items() if name not in left_out}
        # The checkout takes the place of `pip install`.
        self._environment |= {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def export(self, command: str, value: str) -> None:
        [name] = re.findall(r"^export (\w+)='postgresql\+asyncpg://[^']*'$", command)
        self._environment[name] = value

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator["Running"]:
        output = self._directory / f"output-of-{command.split(maxsplit=1)[0]}"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                cwd=self._directory,
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(process, output)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=PATIENCE)


class Running:
    """A command that runs until it is interrupted."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self._output.read_text(), re.MULTILINE)):
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, self._output.read_text()
            time.sleep(0.05)
        return found[0]

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(timeout=PATIENCE) == 0, self._output.read_text()
        assert "Traceback" not in self._output.read_text()


def test_it_can_be_followed(directory: Path) -> None:
    assert set(FILES) == {"service.py", "publish.py", "test_service.py"}
    *_, postgres, export, serve, publish, _test = COMMANDS
    terminal = Terminal(directory)
    with ExitStack() as stack:
        server = stack.enter_context(terminal.running(postgres))
        terminal.export(export, server.wait_for(r"^postgresql\+asyncpg://.*$"))
        service = stack.enter_context(terminal.running(serve))
        service.wait_for("FastStream app started successfully")
        assert "placed order 1\n" in terminal.run(publish)
        service.wait_for("^packing order 1$")
        service.interrupt()
        assert "placed order 2\n" in terminal.run(publish)
        service = stack.enter_context(terminal.running(serve))
        service.wait_for("^packing order 2$")
        service.interrupt()
        server.interrupt()


def test_its_test_needs_no_database(directory: Path) -> None:
    assert "1 passed" in Terminal(directory).run(COMMANDS[-1])


def test_what_it_installs_is_there_to_be_installed() -> None:
    [extras] = re.findall(r"^pip install '\.\[([\w,]+)\]' pytest pytest-asyncio$", "\n".join(COMMANDS), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_every_block_is_a_file() -> None:
    assert "```python\n" not in PAGE
