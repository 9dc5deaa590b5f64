"""What the status says of a relay whose broker answers while a destination does not accept."""

from types import SimpleNamespace
from typing import Any

import pytest

from faststream_outbox.cli.status import Status
from faststream_outbox.relay.targets.base import NotAcceptedError


@pytest.mark.parametrize(
    ("down", "state", "description"),
    [
        (False, "running", "running: nothing is accepted by small"),
        (True, "paused", "paused: the broker is down: gone"),
    ],
)
def test_destinations_that_accept_nothing_are_named(down: bool, state: str, description: str) -> None:
    status = Status(["orders"], "nats://127.0.0.1:4222")
    status.phase = "running"
    paused = {"small": NotAcceptedError("full; sent to nats://user:secret@host")}
    relay: Any = SimpleNamespace(down=down, pause_reason=OSError("gone"), paused_destinations=paused)
    status.relay = relay
    assert (status.state, status.description) == (state, description)
    assert list(status.as_dict()["paused_destinations"]) == ["small"]
    assert "secret" not in status.as_dict()["paused_destinations"]["small"]
