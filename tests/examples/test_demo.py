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
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, async_sessionmaker, create_async_engine

from examples.demo import crash, process, run
from examples.demo.__main__ import main
from examples.demo.check import CHECKS, TOLD_WRONG, find_violations
from examples.demo.crash import kill_and_restart
from examples.demo.fates import Fate, deal_fates
from examples.demo.figures import count_figures
from examples.demo.process import AppProcess
from examples.demo.shop import Shop
from examples.demo.tables import Base, outbox_table
from examples.demo.view import show
from examples.demo.watch import Look, QueueCount, Watch
from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import Database, EmbeddedPostgres

_CHECKOUT = Path(__file__).parents[2]
# Of 200 orders: 12 declined, 8 refused, 8 that fail once, 4 that fail twice, 1 that always fails, 1 forged, 8 that are
# never paid and 12 that are.
_DEALT = {
    "Orders committed": 180,
    "Orders rolled back": 20,
    "Orders confirmed": 178,
    "Parcels packed": 178,
    "Customers reminded": 8,
    "Reminders taken back in time": 12,
    "Attempts after one that failed": 8 + 2 * 4 + 2,
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


@pytest.fixture
def plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wish of whoever runs the tests about colours or widths."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def quick_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is no matter where the outcome is made up anyway."""
    monkeypatch.setattr(run, "EmbeddedPostgres", partial(EmbeddedPostgres, fast=True))


@pytest.fixture
def faulty_app(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An app with the fault that `DEMO_FAULT` names."""
    monkeypatch.setattr(process, "MODULE", "tests.examples.faulty_app")
    return monkeypatch


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
    """A demo whose app was started again, and the processes that it must not leave behind: the server and the app."""
    demo = start_demo("--orders", "600", temp_dir=temp_dir)
    assert demo.stdout is not None
    try:
        while not (restart := re.search(r"killed with [\d,]+ messages in hand; app (\d+) started", _line_of(demo))):
            assert demo.poll() is None, demo.communicate()
        (pid_file,) = temp_dir.glob("*/data/postmaster.pid")
        yield demo, [int(pid_file.read_text().splitlines()[0]), int(restart[1])]
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


def counts_in(output: str) -> dict[str, int]:
    lines = re.findall(r"^ +([A-Z][\w ,]*?)  +([\d,]+)(?:  .*)?$", output, re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in lines}


@pytest.mark.usefixtures("plain_output")
def test_a_run_tells_what_happened_and_passes(temp_dir: Path) -> None:
    demo = start_demo("--orders", "200", "--seed", "7", temp_dir=temp_dir)
    output, errors = demo.communicate(timeout=150)
    assert (demo.returncode, errors) == (0, ""), output
    counts = counts_in(output)
    told = {"In hand when the app was killed", "Delivered again after the kill", "Parcels packed again by that"}
    assert {name: counts.get(name) for name in _DEALT} == _DEALT
    assert counts.keys() - _DEALT.keys() >= told
    assert {name: counts.get(name) for name in [*CHECKS, TOLD_WRONG]} == dict.fromkeys([*CHECKS, TOLD_WRONG], 0)
    assert counts["Parcels packed again by that"] <= counts["Delivered again after the kill"]
    assert "seed 7\n" in output
    assert re.search(r"App \d+ killed with \d+ messages in hand; app \d+ started", output)
    assert "200 of 200 placed; orders 2 dead, " in output
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


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_handler_that_loses_a_message_fails_the_run(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = deal_fates(50, seed=1).index(Fate.SMOOTH) + 1
    faulty_app.setenv("DEMO_FAULT", "forget")
    faulty_app.setenv("DEMO_FORGOTTEN", str(lost))
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert f"Orders lost: order {lost}\n" in re.sub(" +\n", "\n", output)


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_row_that_disappears_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def steal_a_reminder(console: Console, watch: Watch, app: AppProcess, orders: int) -> int:
        while 1 not in watch.shop.accepted:
            await asyncio.sleep(0.01)
        async with watch.engine.begin() as connection:
            await connection.execute(text("DELETE FROM outbox WHERE queue = 'reminders' AND timer_id = 'order-1'"))
        return await kill_and_restart(console, watch, app, orders)

    monkeypatch.setattr(run, "deal_fates", lambda orders, seed: [Fate.UNPAID, *deal_fates(orders - 1, seed)])
    monkeypatch.setattr(run, "kill_and_restart", steal_a_reminder)
    assert main(["--orders", "50"]) == 1
    output = capsys.readouterr().out
    assert "Reminders lost: order 1\n" in re.sub(" +\n", "\n", output)
    counts = counts_in(output)
    assert counts["Reminders lost"] == 1
    assert counts["Orders lost"] == counts["Parcels lost"] == 0


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_message_outside_the_transaction_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = OutboxBroker.publish

    async def publish_elsewhere(self: OutboxBroker, body: Any, *, session: Any, **options: Any) -> int | None:
        async with session.bind.begin() as connection:
            return await publish(self, body, session=connection, **options)

    monkeypatch.setattr(OutboxBroker, "publish", publish_elsewhere)
    # The tills' own transactions and these need a connection each.
    monkeypatch.setattr(run, "CONNECTIONS", 2 * run.CONNECTIONS)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Delivered although rolled back"] == 5
    assert "Delivered although rolled back: order " in output
    assert "FAILED" in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_an_app_that_never_ends_fails_the_run(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_app.setenv("DEMO_FAULT", "hang")
    faulty_app.setattr(crash, "PATIENCE_SECONDS", 2.0)
    faulty_app.setattr(process, "STOP_SECONDS", 0.5)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Left in the outbox"] > 0
    assert "The app did not finish." in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_an_app_that_dies_fails_the_run_and_its_log_is_shown(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_app.setenv("DEMO_FAULT", "die")
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "this app has a fault" in output
    counts = counts_in(output)
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


# Orders 1 smooth, 2 flaky, 3 poison, 4 forged, 5 unpaid and reminded, 6 paid; 7 was rolled back. The app was killed
# when it had packed 1 for the first time.
_STORY = """
INSERT INTO orders (number, cents, fate, paid) VALUES
    (1, 100, 'smooth', false), (2, 200, 'flaky', false), (3, 300, 'poison', false), (4, 400, 'forged', false),
    (5, 500, 'unpaid', false), (6, 600, 'paid', true);
INSERT INTO confirmations (message_id, order_number) VALUES (1, 1), (2, 2), (5, 5), (6, 6);
INSERT INTO parcels (order_number) VALUES (1), (1), (2), (5), (6);
INSERT INTO reminders (message_id, order_number) VALUES (15, 5);
INSERT INTO deliveries (queue, message_id, order_number, attempt, life) VALUES
    ('orders', 1, 1, 1, 1), ('orders', 2, 2, 1, 1), ('orders', 2, 2, 2, 2), ('orders', 3, 3, 1, 1),
    ('orders', 3, 3, 2, 2), ('orders', 3, 3, 3, 2), ('orders', 4, 4, 1, 1), ('orders', 5, 5, 1, 1),
    ('orders', 6, 6, 1, 1), ('parcels', 21, 1, 1, 1), ('parcels', 21, 1, 1, 2), ('parcels', 22, 2, 1, 2),
    ('parcels', 25, 5, 1, 2), ('parcels', 26, 6, 1, 2), ('reminders', 15, 5, 1, 2);
INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason, attempts_count) VALUES
    (3, 'orders', '{"order_number": 3}', now(), 'retry_terminal', 3),
    (4, 'orders', '{"order_number": 4}', now(), 'rejected', 1);
"""
_BURY = "INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failure_reason, attempts_count) VALUES "


@pytest.fixture
async def books(outbox_postgres: Database) -> AsyncIterator[AsyncConnection]:
    """The tables of a run in which all went well."""
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await write(connection, _STORY)
        yield connection
    await engine.dispose()


async def write(connection: AsyncConnection, statements: str) -> None:
    for statement in filter(str.strip, statements.split(";")):
        await connection.exec_driver_sql(statement)


async def test_a_consistent_story_has_no_violation(books: AsyncConnection) -> None:
    assert not any((await find_violations(books, {1, 2, 3, 4, 5, 6})).values())


async def test_the_figures_are_those_of_the_story(books: AsyncConnection) -> None:
    figures = await count_figures(books)
    assert (figures.committed, figures.confirmed, figures.packed) == (6, 4, 4)
    assert (figures.reminded, figures.taken_back) == (1, 1)
    assert (figures.retries, figures.given_up, figures.rejected) == (3, 1, 1)
    assert (figures.repeated_by_kill, figures.repeated_otherwise, figures.packed_again) == (1, 0, 1)
    await write(books, "INSERT INTO deliveries SELECT 99, queue, message_id, 2, 1, 2 FROM deliveries WHERE id = 12")
    assert (await count_figures(books)).repeated_otherwise == 1


@pytest.mark.parametrize(
    ("doctoring", "expected"),
    [
        ("DELETE FROM confirmations WHERE order_number = 2", {"Orders lost": [2]}),
        ("DELETE FROM parcels WHERE order_number = 2", {"Parcels lost": [2]}),
        ("DELETE FROM reminders", {"Reminders lost": [5]}),
        ("UPDATE orders SET paid = false WHERE number = 6", {"Reminders lost": [6]}),
        ("UPDATE orders SET paid = true WHERE number = 5", {"Reminded although taken back": [5]}),
        ("INSERT INTO deliveries VALUES (99, 'orders', 7, 7, 1, 1)", {"Delivered although rolled back": [7]}),
        (
            f"{_BURY} (7, 'orders', '{{\"order_number\": 7}}', now(), 'rejected', 1)",
            {"Delivered although rolled back": [7], "Dead letters without a cause": [7]},
        ),
        ("INSERT INTO confirmations VALUES (9, 1)", {"Confirmed or reminded twice": [1]}),
        ("INSERT INTO reminders VALUES (9, 5)", {"Confirmed or reminded twice": [5]}),
        ("INSERT INTO deliveries VALUES (99, 'parcels', 29, 2, 1, 2)", {"Passed on twice": [2]}),
        ("INSERT INTO parcels (order_number) VALUES (2)", {"Packed more often than delivered": [2]}),
        ("UPDATE outbox_dlq SET attempts_count = 2 WHERE original_id = 3", {"Dead letters without a cause": [3]}),
        (
            f"{_BURY} (8, 'orders', '{{\"order_number\": 4}}', now(), 'rejected', 1)",
            {"Dead letters without a cause": [4]},
        ),
        (
            f"{_BURY} (22, 'parcels', '{{\"order_number\": 2}}', now(), 'retry_terminal', 10)",
            {"Dead letters without a cause": [2]},
        ),
        ("DELETE FROM outbox_dlq WHERE original_id = 3", {"Orders lost": [3], "Dead letters missing": [3]}),
        (
            "INSERT INTO outbox (queue, payload) VALUES ('parcels', '{\"order_number\": 2}')",
            {"Left in the outbox": [2]},
        ),
        (
            "DELETE FROM reminders; INSERT INTO outbox (queue, payload) VALUES ('reminders', '{\"order_number\": 5}')",
            {"Left in the outbox": [5]},
        ),
    ],
)
async def test_each_violation_is_found_and_named(
    books: AsyncConnection, doctoring: str, expected: dict[str, list[int]]
) -> None:
    await write(books, doctoring)
    violations = await find_violations(books, {1, 2, 3, 4, 5, 6})
    assert {name: orders for name, orders in violations.items() if orders} == expected


@pytest.mark.parametrize(("accepted", "wrong"), [({1, 2, 3, 4, 5}, [6]), ({1, 2, 3, 4, 5, 6, 7}, [7])])
async def test_a_customer_who_was_told_the_wrong_outcome_is_found(
    books: AsyncConnection, accepted: set[int], wrong: list[int]
) -> None:
    violations = await find_violations(books, accepted)
    assert {name: orders for name, orders in violations.items() if orders} == {TOLD_WRONG: wrong}


async def test_a_terminal_gets_a_table_of_the_queues() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, force_interactive=True, width=80, _environ={})
    queues = (QueueCount("orders", ready=11, in_flight=22, scheduled=33, expired=44, dead=55, handled=66),)
    engine = create_async_engine("postgresql+asyncpg://nowhere/")
    broker = OutboxBroker(engine, outbox_table=outbox_table)
    watch = Watch(engine, broker, Shop(async_sessionmaker(engine), broker))  # one that does not look
    watch.looks.clear()
    watch.looks.extend([Look(0.0), Look(2.0, accepted=9, cancelled=1, queues=queues)])
    showing = asyncio.create_task(show(console, watch, 10))
    await asyncio.sleep(0)
    showing.cancel()
    await asyncio.wait([showing])
    shown = screen.getvalue()
    assert "10 of 10" in shown
    assert re.search(r"orders +11 +22 +33 +44 +55 +66 +33", shown)
