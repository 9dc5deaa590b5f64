"""`stats` and `top`: all figures, in a pipe and in a terminal."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

from tests.cli.outbox import Done, Outbox
from tests.cli.programs import TIMEOUT, running
from tests.cli.terminals import terminal
from tests.waiting import until

Operate = Callable[..., Done]


def test_the_figures_of_all_queues_and_their_total(outbox: Outbox, operate: Operate) -> None:
    for queue in ("mail", "orders", "orders"):
        outbox.publish(1, queue=queue)
    outbox.dead_letter(queue="mail")
    found = operate("stats", "-o", "json").json
    assert [each["queue"] for each in found["queues"]] == ["mail", "orders"]
    assert (found["total"]["ready"]["number"], found["total"]["dead"]["number"]) == (3, 1)
    last = operate("stats").out.splitlines()[-1].split()
    assert last[:2] == ["total", "3"]


async def test_stats_are_redrawn_in_a_terminal_until_ctrl_c(outbox: Outbox) -> None:
    async with terminal("stats", "--watch", "--interval", "0.1", OUTBOX_DSN=outbox.dsn) as screen:
        await screen.wait_for("The outbox is empty.")
        await outbox.publishing(1)
        await screen.wait_for(r"orders +1 ")
        await outbox.publishing(1)
        await screen.wait_for(r"orders +2 ")
        screen.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(screen.process.wait, TIMEOUT) == 0, screen.text
        assert "Traceback" not in screen.text


async def test_watched_stats_are_lines_of_json_in_a_pipe(outbox: Outbox, tmp_path: Path) -> None:
    await outbox.publishing(1)
    arguments = ("stats", "--watch", "--interval", "0.1", "-o", "jsonl")
    with running(*arguments, output=tmp_path / "stats", OUTBOX_DSN=outbox.dsn) as program:
        written = await until(lambda: program.output, lambda written: written.count("\n") >= 1, seconds=TIMEOUT)
        assert json.loads(written.splitlines()[1])["total"]["ready"]["number"] == 1
        assert await program.interrupt() == 0
