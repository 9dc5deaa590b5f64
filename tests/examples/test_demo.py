"""`make demo`: what it prints, and how it ends."""

import asyncio
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.demo import run
from examples.demo.__main__ import main
from examples.demo.check import CHECKS, WRONG_ANSWER
from examples.demo.fates import Fate, deal_fates
from examples.demo.order_check import ORDER_CHECKS
from examples.demo.shop import Shop
from examples.demo.tables import outbox_table
from examples.demo.view import show
from examples.demo.watch import Look, QueueCount, Watch, WorkerCount
from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import EmbeddedPostgres
from tests.examples.demo_output import counts_in

_KILL = re.compile(r"^  Worker [12] \(process \d+\) killed, \d+ messages in hand, \d+ of them charges$", re.MULTILINE)
_START = re.compile(r"^  Worker 3 \(process (\d+)\) started$", re.MULTILINE)
_CHECKOUT = Path(__file__).parents[2]
# Of 200 orders: 12 declined, 8 refused, 8 that fail once, 4 that fail twice, 1 that always fails, 1 forged, 8 that are
# never paid and 12 that are. 60 of those that are committed go on an account, of which 3 fail once.
_DEALT = {
    "Orders committed": 180,
    "Orders rolled back": 20,
    "Orders confirmed": 178,
    "Parcels packed": 178,
    "Charges booked": 60,
    "Statements relayed to Kafka": 60,
    "Customers reminded": 8,
    "Reminders taken back in time": 12,
    "Attempts after one that failed": 8 + 2 * 4 + 2 + 3,
    "Dead letters, after 3 attempts": 1,
    "Dead letters, rejected at once": 1,
}


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """A temporary directory that the server's account can enter too."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-demo-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def start_demo(*arguments: str, temp_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=_CHECKOUT,
        env=os.environ | {"TMPDIR": str(temp_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def demo_in_the_middle(temp_dir: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A demo that has killed a worker, and some processes that it must not leave behind: the server and a worker."""
    demo = start_demo("--orders", "600", temp_dir=temp_dir)
    assert demo.stdout is not None
    try:
        while not (start := _START.search(_line_of(demo))):
            assert demo.poll() is None, demo.communicate()
        (pid_file,) = temp_dir.glob("*/data/postmaster.pid")
        yield demo, [int(pid_file.read_text().splitlines()[0]), int(start[1])]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(demo.pid, signal.SIGKILL)
        demo.communicate(timeout=10)


def _line_of(demo: subprocess.Popen[str]) -> str:
    assert demo.stdout is not None
    return demo.stdout.readline()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # In a container nobody may wait for orphans: one that has ended stays as a zombie.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or ") Z " not in stat.read_text()


@pytest.mark.usefixtures("plain_output")
def test_a_run_tells_what_happened_and_passes(temp_dir: Path) -> None:
    demo = start_demo("--orders", "200", "--seed", "7", temp_dir=temp_dir)
    output, errors = demo.communicate(timeout=150)
    assert (demo.returncode, errors) == (0, ""), output
    counts = counts_in(output)
    told = {
        *("In hand when the worker was killed", "Delivered again after the kill", "Parcels packed again by that"),
        *("Calls of handlers in worker 1", "Calls of handlers in worker 2", "Accounts that changed hands"),
    }
    assert {name: counts.get(name) for name in _DEALT} == _DEALT
    assert counts.keys() - _DEALT.keys() >= told
    checks = [*CHECKS, *ORDER_CHECKS, WRONG_ANSWER]
    assert {name: counts.get(name) for name in checks} == dict.fromkeys(checks, 0)
    assert counts["Parcels packed again by that"] <= counts["Delivered again after the kill"]
    assert "seed 7\n" in output
    assert _KILL.search(output)
    assert _START.search(output)
    assert "200 of 200 placed\n    orders: 2 dead, " in output
    assert "PASSED" in output
    assert "\x1b" not in output
    assert list(temp_dir.iterdir()) == []


@pytest.mark.usefixtures("plain_output")
def test_ctrl_c_leaves_nothing_behind(temp_dir: Path) -> None:
    with demo_in_the_middle(temp_dir) as (demo, processes):
        os.killpg(demo.pid, signal.SIGINT)
        output, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors) == (130, "")
    assert output.endswith("Interrupted; nothing is left behind.\n")
    assert list(temp_dir.iterdir()) == []
    assert not any(map(is_running, processes))


@pytest.mark.usefixtures("plain_output")
def test_a_demo_that_is_killed_leaves_nothing_behind_either(temp_dir: Path) -> None:
    with demo_in_the_middle(temp_dir) as (demo, processes):
        demo.kill()
        deadline = time.monotonic() + 60
        while any(map(is_running, processes)) or list(temp_dir.iterdir()):
            assert time.monotonic() < deadline, processes
            time.sleep(0.05)


@pytest.mark.usefixtures("plain_output")
def test_missing_binaries_are_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "EmbeddedPostgres", partial(EmbeddedPostgres, bin_dir=tmp_path))
    assert main([]) == 2
    assert "holds no postgres" in capsys.readouterr().err


@pytest.mark.parametrize("orders", ["0", "-3", "many"])
def test_orders_are_a_number_from_one_up(orders: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--orders", orders])
    assert "--orders" in capsys.readouterr().err


def test_fates_follow_from_the_seed() -> None:
    assert deal_fates(300, seed=7) == deal_fates(300, seed=7) != deal_fates(300, seed=8)
    assert set(deal_fates(300, seed=7)) == set(Fate)
    assert len(deal_fates(1, seed=7)) == 1


async def test_a_terminal_gets_a_table_of_the_queues() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, force_interactive=True, width=80, highlight=False, _environ={})
    queues = (QueueCount("orders", ready=11, in_flight=22, scheduled=33, expired=44, blocked=50, dead=55, handled=66),)
    engine = create_async_engine("postgresql+asyncpg://nowhere/")
    broker = OutboxBroker(engine, outbox_table=outbox_table)
    watch = Watch(engine, broker, Shop(async_sessionmaker(engine), broker))  # one that does not look
    watch.looks.clear()
    workers = (WorkerCount(1, 1_000, killed=True), WorkerCount(2, 2_000, accounts=3))
    watch.looks.extend([Look(0.0), Look(2.0, accepted=9, cancelled=1, queues=queues, workers=workers)])
    showing = asyncio.create_task(show(console, watch, 10))
    await asyncio.sleep(0)
    showing.cancel()
    await asyncio.wait([showing])
    shown = screen.getvalue()
    assert "10 of 10" in shown
    assert re.search(r"orders +11 +22 +33 +44 +50 +55 +66 +33", shown)
    assert "worker 1: 1,000 calls, killed" in shown
    assert "worker 2: 2,000 calls, accounts in hand: 3" in shown
