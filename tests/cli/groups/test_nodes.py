"""`nodes list`, and who holds a message: `messages show`."""

import asyncio
import signal
from collections.abc import Callable

from faststream_outbox.storage.nodes import Node
from tests.cli.outbox import Done, Outbox
from tests.cli.programs import TIMEOUT, run
from tests.cli.terminals import terminal

Operate = Callable[..., Done]


def live(outbox: Outbox, node: Node) -> None:
    """Take the lock of a node, on the connection of the test, under the name that a broker gives it."""
    outbox.run(f"SET application_name = 'shop {node.name} shop-1:7'")
    outbox.run(f"SELECT pg_advisory_lock_shared({node.lock})")


def register(outbox: Outbox, node: Node, *queues: str) -> None:
    statement = "INSERT INTO outbox_nodes (name, host, pid, version, queues, strategy) VALUES (%s, %s, %s, %s, %s, %s)"
    outbox.run(statement, node.name, "shop-1", 7, "1.2", list(queues), "HeadLease")


def hold(outbox: Outbox, node: Node) -> None:
    node.locked = True
    leased = "UPDATE outbox SET acquired_token = %s, acquired_at = now(), lease_expires_at = now() + interval '1 h'"
    outbox.run(leased, node.make_token())


def test_living_and_dead_nodes_are_listed(outbox: Outbox, operate: Operate) -> None:
    living, dead = Node(), Node()
    outbox.publish(1)
    hold(outbox, dead)
    register(outbox, living, "mail", "orders")
    live(outbox, living)
    first, second = operate("nodes", "list", "-o", "json").json
    assert (first["name"], first["alive"], first["host"], first["pid"]) == (living.name, True, "shop-1", 7)
    assert (first["queues"], first["version"], first["ordering"]) == (["mail", "orders"], "1.2", "HeadLease")
    assert (second["name"], second["alive"], second["in_hand"]["number"]) == (dead.name, False, 1)
    done = operate("nodes", "list")
    head, *rows = done.out.splitlines()
    assert head.split()[:3] == ["node", "alive", "process"]
    assert [row.split()[:3] for row in rows] == [[living.name, "yes", "shop-1:7"], [dead.name, "no", "-"]]
    assert rows[0].endswith("mail, orders")
    assert done.err == ""


def test_without_the_table_the_connection_says_where_a_node_runs(outbox: Outbox) -> None:
    node = Node()
    outbox.run("DROP TABLE outbox_nodes")
    assert run("nodes", "list", OUTBOX_DSN=outbox.dsn).stdout == "No process that reads this outbox is connected.\n"
    live(outbox, node)
    done = run("nodes", "list", OUTBOX_DSN=outbox.dsn)
    assert done.returncode == 0, done.stderr
    [_, row] = done.stdout.splitlines()
    assert row.split()[:4] == [node.name, "yes", "shop-1:7", "-"]
    assert "There is no table of nodes" in done.stderr


def test_the_holder_of_a_message_is_shown_with_its_process(outbox: Outbox, operate: Operate) -> None:
    node, number = Node(), outbox.publish(1)
    assert "holder" not in operate("messages", "show", number).out
    hold(outbox, node)
    assert f"{node.name} (dead)" in operate("messages", "show", number).out
    live(outbox, node)
    assert f"{node.name} (shop-1:7, alive)" in operate("messages", "show", number).out
    shown = operate("messages", "show", number, "-o", "json").json
    assert (shown["holder"], shown["holder_process"], shown["holder_alive"]) == (node.name, "shop-1:7", True)


async def test_nodes_are_redrawn_in_a_terminal(outbox: Outbox) -> None:
    node = Node()
    async with terminal("nodes", "list", "--watch", "--interval", "0.1", OUTBOX_DSN=outbox.dsn) as screen:
        await screen.wait_for("No process that reads this outbox is connected.")
        live(outbox, node)
        await screen.wait_for(rf"{node.name} +yes +shop-1:7")
        screen.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(screen.process.wait, TIMEOUT) == 0, screen.text
