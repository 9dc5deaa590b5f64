"""How a relay is at the moment: what it does, and what it waits for."""

from typing import Any, Literal

from faststream_outbox.cli.figures import Figures
from faststream_outbox.cli.passwords import hide
from faststream_outbox.relay import Relay

Phase = Literal["starting", "running", "stopping"]


class Status:
    """What is known of a running relay, in one place for all who tell it."""

    def __init__(self, relay: Relay, figures: Figures, to: str) -> None:
        self.figures = figures
        self.phase: Phase = "starting"
        # Without a password.
        self.to = hide(to)
        self._relay = relay

    @property
    def state(self) -> Literal["starting", "running", "paused", "stopping"]:
        """In one word."""
        return "paused" if self.phase != "stopping" and self._relay.paused else self.phase

    @property
    def alive(self) -> bool:
        """Whether every loop runs that should."""
        return self.phase != "running" or self._relay.alive

    @property
    def reason(self) -> str:
        """Why it pauses."""
        return hide(str(self._relay.pause_reason or ""))

    @property
    def in_words(self) -> str:
        """In a few words."""
        return f"paused: the broker is down: {self.reason}" if self.state == "paused" else self.state

    def as_dict(self) -> dict[str, Any]:
        """Tell all of it, for machines."""
        told: dict[str, Any] = {"state": self.state, "to": self.to, **self.figures.as_dict()}
        if self.state == "paused":
            told["reason"] = self.reason
        return told
