"""`top`: the whole outbox on one screen."""

import asyncio
import re
import signal
from collections.abc import Callable

from faststream_outbox.storage.nodes import Node
from tests.cli.groups.test_nodes import live, register
from tests.cli.outbox import Done, Outbox
from tests.cli.programs import TIMEOUT, run
from tests.cli.terminals import terminal
from tests.waiting import until

Operate = Callable[..., Done]
PARK = "UPDATE outbox SET next_attempt_at = 'infinity' WHERE entity_key = 'k-1'"
ALTERNATE_SCREEN = "\x1b[?1049h"


def fill(outbox: Outbox) -> Node:
    """Put in what each part of the screen shows."""
    node = Node()
    outbox.publish(1)
    outbox.publish(2, queue="mail", key="k-1")
    outbox.run(PARK)
    outbox.dead_letter(queue="mail")
    register(outbox, node, "orders")
    live(outbox, node)
    return node


def test_it_is_shown_once_in_a_pipe(outbox: Outbox) -> None:
    node = fill(outbox)
    done = run("top", OUTBOX_DSN=outbox.dsn)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    parts = done.stdout.rstrip().split("\n\n")
    assert parts[0].endswith("1 node alive")
    queues = {line.split()[0]: line.split() for line in parts[1].splitlines()}
    assert (queues["orders"][1], queues["orders"][-2]) == ("1", "1")
    assert (queues["mail"][1], queues["mail"][-2]) == ("0", "0")
    assert parts[2].startswith("Nodes:\n")
    assert f"{node.name}  yes" in parts[2]
    assert "k-1" in parts[3]
    assert "ValueError" in parts[4]


def test_as_json_it_has_all_parts(outbox: Outbox, operate: Operate) -> None:
    node = fill(outbox)
    found = operate("top", "-o", "json").json
    assert [each["queue"] for each in found["queues"]] == ["mail", "orders"]
    assert [each["name"] for each in found["nodes"]] == [node.name]
    assert [each["key"] for each in found["keys"]] == ["k-1"]
    assert [each["queue"] for each in found["dead_letters"]] == ["mail"]
    assert found["activity"]["in_per_second"] is None, "a rate needs two looks"
    [line] = operate("top", "-o", "jsonl").lines
    assert line.keys() == found.keys()


def test_an_empty_outbox_is_said(outbox: Outbox, operate: Operate) -> None:
    assert outbox.one("SELECT count(*) FROM outbox") == 0
    shown = operate("top").out
    assert "The outbox is empty." in shown
    assert "No process that reads this outbox is connected." in shown
    assert "Keys that wait" not in shown


async def test_it_is_redrawn_on_a_screen_of_its_own_with_rates(outbox: Outbox) -> None:
    async with terminal("top", "--interval", "0.1", OUTBOX_DSN=outbox.dsn) as screen:
        await screen.wait_for("The outbox is empty.")
        assert ALTERNATE_SCREEN in screen.raw
        await outbox.publishing(1)
        await screen.wait_for(r"orders +1 ")

        async def publish_and_look() -> bool:
            """Publish one more, and return whether a frame has shown that messages came, in both places."""
            await outbox.publishing(1)
            rate, change = r"in [1-9][\d,]*/s +out [\d,]+/s +0 nodes alive", r"orders +\d+ +\+\d"
            return all(re.search(pattern, screen.text) for pattern in (rate, change))

        await until(publish_and_look, seconds=TIMEOUT)
        screen.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(screen.process.wait, TIMEOUT) == 0, screen.text
        assert "Traceback" not in screen.text
