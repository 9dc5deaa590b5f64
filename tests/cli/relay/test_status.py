"""What the status says of a relay whose broker answers while a destination does not accept."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from faststream_outbox.cli.relay.metrics import RelayMetrics
from faststream_outbox.cli.relay.status import ProgressLines, Status
from faststream_outbox.relay.destinations import NAMED
from faststream_outbox.relay.targets.base import NotAcceptedError
from faststream_outbox.storage import QueueStats
from tests.observers import Reports


@pytest.mark.parametrize(
    ("down", "state", "description"),
    [
        (False, "running", "running: nothing is accepted by small"),
        (True, "paused", "paused: the broker is down: gone"),
    ],
)
def test_destinations_that_accept_nothing_are_named(down: bool, state: str, description: str) -> None:
    status = Status({"orders": "small"}, "nats://127.0.0.1:4222")
    status.phase = "running"
    paused = {"small": NotAcceptedError("full; sent to nats://user:secret@host")}
    relay: Any = SimpleNamespace(down=down, pause_reason=OSError("gone"), paused_destinations=paused, paused_queues={})
    status.relay = relay
    assert (status.state, status.description) == (state, description)
    assert list(status.as_dict()["paused_destinations"]) == ["small"]
    assert "secret" not in status.as_dict()["paused_destinations"]["small"]


def test_of_very_many_destinations_only_the_first_are_named() -> None:
    status = Status({"orders": "header:to"}, "nats://127.0.0.1:4222")
    status.phase = "running"
    paused = {f"to-{number}": NotAcceptedError("full") for number in range(2_000)}
    relay: Any = SimpleNamespace(down=False, pause_reason=None, paused_destinations=paused, paused_queues={})
    status.relay = relay
    shown = status.as_dict()
    assert list(shown["paused_destinations"]) == [f"to-{number}" for number in range(NAMED)]
    assert shown["paused_destinations_count"] == 2_000
    assert status.description.endswith(f", to-{NAMED - 1}, 1,970 others")
    metrics = RelayMetrics(status, "shop").render().decode()
    assert metrics.count("faststream_outbox_relay_destination_paused{") == NAMED
    assert 'faststream_outbox_relay_destinations_paused{app_name="shop",broker="outbox"} 2000.0' in metrics


def stopped_status(*queues: str) -> Status:
    """Return the status of a relay of some queues, each routed to a destination of its name."""
    status = Status({queue: f"{queue}-topic" for queue in queues}, "nats://127.0.0.1:4222")
    relay: Any = SimpleNamespace(down=False, pause_reason=None, paused_destinations={}, paused_queues={})
    status.relay = relay
    return status


def test_figures_are_there_for_each_route() -> None:
    status = stopped_status("orders", "refunds")
    for event in ("acked", "acked", "nacked_retried", "nacked_terminal"):
        status(event, {"queue": "orders"})
    status("backlog", asdict(QueueStats("orders", ready=3, in_flight=2, blocked_keys=1, oldest_due_age=4.25)))
    queues = status.as_dict()["queues"]
    orders = queues["orders"]
    assert (orders["route"], orders["relayed"], orders["retried"], orders["refused"]) == ("orders-topic", 2, 1, 1)
    assert (orders["ready"], orders["in_flight"], orders["blocked_keys"], orders["lag_seconds"]) == (3, 2, 1, 4.25)
    assert queues["refunds"]["relayed"] == 0
    assert status.totals == (2, 1, 1)


async def test_a_line_of_progress_says_which_routes_wait() -> None:
    names = [f"q{number}" for number in range(7)]
    status, reports = stopped_status("idle", *names), Reports()
    status("backlog", asdict(QueueStats("idle")))
    for name in names:
        status("backlog", asdict(QueueStats(name, in_flight=1200, blocked_keys=2, parked_keys=1, oldest_due_age=3.04)))
    await ProgressLines(status, reports, interval=0).step()
    [line] = reports.named("relay_progress")
    assert line["message"].startswith(
        "0 rows relayed, 0 per second. Waiting: q0: lag 3.0 s, 1,200 in flight, 2 blocked"
    )
    assert line["message"].endswith("q4: lag 3.0 s, 1,200 in flight, 2 blocked keys, 1 parked keys; ….")
    assert "idle" not in line["message"]
    assert line["queues"]["q6"]["in_flight"] == 1200


async def test_a_queue_that_an_operator_paused_is_shown_before_rows_are_counted() -> None:
    status, reports = stopped_status("orders", "refunds"), Reports()
    status.phase = "running"
    status.relay.paused_queues["orders"] = "by ann (a migration)"
    await ProgressLines(status, reports, interval=0).step()
    [line] = reports.named("relay_progress")
    assert line["message"] == "0 rows relayed, 0 per second. Waiting: orders: paused by ann (a migration)."
    assert {queue: each["paused"] for queue, each in line["queues"].items()} == {
        "orders": "by ann (a migration)",
        "refunds": None,
    }
