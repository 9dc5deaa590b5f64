"""`make demo`: what it prints, that its check can fail, and how it ends."""

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.demo import run
from examples.demo.__main__ import main
from examples.demo.check import Evidence, find_violations
from examples.demo.delivery import MAX_ATTEMPTS
from examples.demo.fates import Fate, deal_fates
from examples.demo.progress import Counts, show_progress
from examples.demo.shop import order_in
from examples.demo.warehouse import Warehouse
from faststream_outbox.embedded import EmbeddedPostgres
from faststream_outbox.storage import NewRow, PostgresStore

_CHECKOUT = Path(__file__).parents[2]
# Of 300 orders: 18 declined, 12 refused, 15 that fail once, 1 that always fails.
_DEALT = {
    "Orders committed": 270,
    "Orders rolled back": 30,
    "Messages delivered": 269,
    "Deliveries failed and retried": 17,
    "Dead letters, after 3 attempts": 1,
}


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """A temporary directory that the server's account can enter too."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-demo-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wish of whoever runs the tests about colours or widths."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is no matter where the outcome is made up anyway."""
    monkeypatch.setattr(run, "EmbeddedPostgres", partial(EmbeddedPostgres, fast=True))


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


def counts_in(output: str) -> dict[str, int]:
    lines = re.findall(r"^ +([A-Z][\w ,]*?)  +([\d,]+)(?:  .*)?$", output, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in lines}


@pytest.mark.usefixtures("plain_output")
def test_a_run_tells_what_happened_and_passes(temp_dir: Path) -> None:
    process = start_demo("--orders", "300", "--seed", "7", temp_dir=temp_dir)
    output, errors = process.communicate(timeout=90)
    assert (process.returncode, errors) == (0, "")
    must_not_happen = dict.fromkeys(find_violations(consistent_evidence()), 0)
    assert counts_in(output) == _DEALT | must_not_happen
    assert "seed 7\n" in output
    assert "300 of 300 orders placed, 270 messages settled" in output
    assert "PASSED" in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80
    assert list(temp_dir.iterdir()) == []


@pytest.mark.usefixtures("plain_output")
def test_ctrl_c_leaves_nothing_behind(temp_dir: Path) -> None:
    process = start_demo("--orders", "1000000", temp_dir=temp_dir)
    assert process.stdout is not None
    try:
        while "messages settled" not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        (pid_file,) = temp_dir.glob("*/data/postmaster.pid")
        server = int(pid_file.read_text().splitlines()[0])
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, errors) == (130, "")
    assert output.endswith("Interrupted; nothing is left behind.\n")
    assert list(temp_dir.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_lost_delivery_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pack = Warehouse.pack
    lost = deal_fates(50, seed=1).index(Fate.SMOOTH) + 1

    async def pack_all_but_one(self: Warehouse, message: bytes) -> None:
        if order_in(message) != lost:
            await pack(self, message)

    monkeypatch.setattr(Warehouse, "pack", pack_all_but_one)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert f"Lost: order {lost}\n" in re.sub(" +\n", "\n", output)


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_message_outside_the_transaction_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    insert = PostgresStore.insert

    async def insert_elsewhere(self: PostgresStore, _session: Any, row: NewRow) -> int | None:
        assert self.engine is not None
        async with self.engine.begin() as connection:
            return await insert(self, connection, row)

    monkeypatch.setattr(PostgresStore, "insert", insert_elsewhere)
    # The tills' own transactions and these need a connection each.
    monkeypatch.setattr(run, "CONNECTIONS", 2 * run.CONNECTIONS)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Delivered although rolled back"] == 5
    assert "Delivered although rolled back: order " in output
    assert "FAILED" in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_delivery_that_never_ends_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def pack_for_ever(_self: Warehouse, _message: bytes) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Warehouse, "pack", pack_for_ever)
    monkeypatch.setattr(run, "PATIENCE_SECONDS", 0.1)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    counts = counts_in(capsys.readouterr().out)
    assert counts["Left in the outbox"] == counts["Orders committed"] == 45


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


def consistent_evidence() -> Evidence:
    """Orders 1 to 3 delivered, 3 at the second attempt; 4 a dead letter; 5 rolled back."""
    return Evidence(
        confirmed={1, 2, 3, 4},
        cancelled={5},
        committed={1, 2, 3, 4},
        packed=Counter([1, 2, 3]),
        failed=Counter({3: 1, 4: MAX_ATTEMPTS}),
        dead=Counter([4]),
        left=Counter(),
    )


def test_a_consistent_story_has_no_violation() -> None:
    assert not any(find_violations(consistent_evidence()).values())


@pytest.mark.parametrize(
    ("doctored", "expected"),
    [
        ({"packed": Counter([1, 3])}, {"Lost": [2]}),
        ({"dead": Counter[int]()}, {"Lost": [4]}),
        ({"failed": Counter({3: 1, 4: MAX_ATTEMPTS - 1})}, {"Lost": [4]}),
        ({"packed": Counter([1, 2, 2, 3])}, {"Delivered more than once": [2]}),
        ({"packed": Counter([1, 2, 3, 4])}, {"Delivered more than once": [4]}),
        ({"dead": Counter([4, 4])}, {"Delivered more than once": [4]}),
        ({"packed": Counter([1, 2, 3, 5])}, {"Delivered although rolled back": [5]}),
        ({"failed": Counter({3: 1, 4: MAX_ATTEMPTS, 5: 1})}, {"Delivered although rolled back": [5]}),
        ({"dead": Counter([4, 5])}, {"Delivered although rolled back": [5]}),
        ({"left": Counter([2]), "packed": Counter([1, 3])}, {"Left in the outbox": [2]}),
        ({"confirmed": {1, 2, 3}}, {"Customer told the wrong outcome": [4]}),
        ({"confirmed": {1, 2, 3, 4, 5}}, {"Customer told the wrong outcome": [5]}),
        (
            {"committed": {1, 2, 3}},
            {"Delivered although rolled back": [4], "Customer told the wrong outcome": [4]},
        ),
    ],
)
def test_each_violation_is_found_and_named(doctored: dict[str, Any], expected: dict[str, list[int]]) -> None:
    violations = find_violations(replace(consistent_evidence(), **doctored))
    assert {name: orders for name, orders in violations.items() if orders} == expected


async def test_a_terminal_gets_bars_that_end_full() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, force_interactive=True, width=80, _environ={})
    looked = asyncio.Event()

    def count() -> Counts:
        looked.set()
        return Counts(orders=10, confirmed=9, cancelled=1, settled=9)

    showing = asyncio.create_task(show_progress(console, count))
    await looked.wait()
    showing.cancel()
    await asyncio.wait([showing])
    assert "10/10" in screen.getvalue()
    assert "9/9" in screen.getvalue()
