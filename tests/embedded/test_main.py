"""`python -m faststream_outbox.embedded`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

Fetch = Callable[..., Any]
StartPython = Callable[..., subprocess.Popen[str]]

MODULE = ("-m", "faststream_outbox.embedded")
COMMAND = """
import asyncio, asyncpg, os, sys
async def main():
    connection = await asyncpg.connect(os.environ["OUTBOX_TEST_DSN"])
    print(await connection.fetchval("SHOW fsync"))
    await connection.close()
asyncio.run(main())
sys.exit(7)
"""


def test_command_gets_the_dsn_and_gives_its_exit_code(start_python: StartPython) -> None:
    process = start_python(*MODULE, "--fast", "--", sys.executable, "-c", COMMAND)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (7, "off\n", "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
async def test_waits_for_its_end_and_keeps_the_data(
    number: signal.Signals,
    code: int,
    *,
    start_python: StartPython,
    open_dir: Path,
    fetch: Fetch,
    is_listening: Callable[[int], bool],
) -> None:
    process = start_python(*MODULE, "--data-dir", str(open_dir / "data"))
    assert process.stdout is not None
    dsn = process.stdout.readline().strip()
    assert await fetch(dsn, "SHOW data_directory") == str(open_dir / "data")
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (code, "")
    port = urlsplit(dsn).port
    assert port is not None
    assert not is_listening(port)
    assert (open_dir / "data" / "PG_VERSION").is_file()


def test_command_that_a_signal_ends_gives_the_shells_code(start_python: StartPython) -> None:
    process = start_python(*MODULE, "--fast", "--", "sh", "-c", "kill -KILL $$")
    process.communicate(timeout=120)
    assert process.returncode == 137


def test_end_is_passed_on_to_the_command(start_python: StartPython) -> None:
    process = start_python(
        *MODULE,
        "--fast",
        "--",
        "sh",
        "-c",
        "trap 'trap \"exit 9\" TERM; echo more' TERM; echo ready; while :; do sleep 0.1; done",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    # The first may come while the command is still being started, the second cannot.
    process.terminate()
    assert process.stdout.readline() == "more\n"
    process.terminate()
    assert process.wait(timeout=120) == 9


def test_ctrl_c_is_left_to_the_command(start_python: StartPython) -> None:
    process = start_python(
        *MODULE, "--fast", "--", "sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=120) == 9


def test_command_inherits_an_ignored_ctrl_c(start_python: StartPython) -> None:
    script = "import signal; print(signal.getsignal(signal.SIGINT).name)"
    process = start_python(*MODULE, "--fast", "--", sys.executable, "-c", script, sigint=signal.SIG_IGN)
    output, _ = process.communicate(timeout=120)
    assert output == "SIG_IGN\n"


def test_missing_command_is_an_error(start_python: StartPython) -> None:
    process = start_python(*MODULE, "--fast", "--", "no-such-command")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 127
    assert "no command 'no-such-command'" in errors


def test_errors_are_printed_without_a_traceback(start_python: StartPython, tmp_path: Path) -> None:
    process = start_python(*MODULE, "--bin-dir", str(tmp_path))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "holds no postgres and no initdb" in errors
    assert "Traceback" not in errors
