"""Pauses a relay while the broker that it sends to is down."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from faststream_outbox.relay.targets.base import NothingAcceptedError, Target
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.runtime.telemetry import Monitor

# How long to wait between two checks of a broker that is down: short at first, then doubled up to the maximum.
_FIRST_WAIT: Final = 0.2
_MAX_WAIT: Final = 2.0
# A broker that does not answer a check within this time counts as down.
_ANSWER_SECONDS: Final = 5.0
# An outage that follows another within this time keeps its waits: the broker answers checks but accepts no messages.
_SAME_OUTAGE_SECONDS: Final = 10.0


class Outage(Loop):
    """Stops the claims when the broker fails, and resumes them when it answers again.

    A broker that answers but accepts nothing gets messages at each try; the pause is over when it confirms one.
    """

    failure_event = "relay_failed"
    task = "Waiting for the broker"

    def __init__(
        self, target: Target, monitor: Monitor, *, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        super().__init__(monitor)
        self._target = target
        self._pause = pause
        self._resume = resume
        # Why the relay is paused, until the log has said that it is resumed.
        self.reason: Exception | None = None
        self._begun = asyncio.Event()
        self._over = asyncio.Event()
        self._over.set()
        self._over_at = 0.0
        # Whether the relay stops: calls give back what they would keep until the end of an outage.
        self._closed = False
        self._wait = _FIRST_WAIT
        self._asking: asyncio.Task[bool] | None = None

    @property
    def ongoing(self) -> bool:
        """Whether the broker is known to be down, so that nothing is claimed or sent."""
        return self._begun.is_set()

    @property
    def outlasts_relay(self) -> bool:
        """Whether the broker is down while the relay stops: rows are given back, not sent."""
        return self.ongoing and self._closed

    def begin(self, error: Exception) -> None:
        """Stop the claims, because the broker is down."""
        if self.ongoing:
            return
        known, self.reason = self.reason is not None, error
        self._begun.set()
        if not self._closed:
            self._over.clear()
        self._pause()
        if known:
            return
        if isinstance(error, NothingAcceptedError):
            message = f"The broker accepts nothing; rows wait until it does: {error}"
        else:
            message = f"The broker is down; no rows are claimed until it answers again: {error}"
        self._monitor.report("relay_paused", message, level=logging.WARNING, error=error)

    def confirm(self) -> None:
        """Note that the broker has confirmed messages."""
        if not self.ongoing:
            self._end("The broker accepts messages again.")

    async def wait_until_over(self) -> bool:
        """Wait until the broker answers again; return False if the relay stops before that."""
        await self._over.wait()
        return not self._closed

    def close(self) -> None:
        """Make every call that waits give its rows back: the relay stops."""
        self._closed = True
        self._over.set()

    async def broker_answers(self) -> bool:
        """Return whether the broker answers; callers that ask together share one question."""
        if self.ongoing:
            return False
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(answers(self._target.alive, _ANSWER_SECONDS))
        return await asyncio.shield(self._asking)

    async def step(self) -> None:
        """Wait for an outage, then until the broker answers."""
        # Nothing may be left to be sent that a broker could confirm: others have sent it, or it was deleted.
        quiet = None if self.reason is None else self._target.confirm_timeout + _SAME_OUTAGE_SECONDS
        with suppress(TimeoutError):
            async with asyncio.timeout(quiet):
                await self._begun.wait()
        if not self.ongoing:
            self._end("The broker answers, and no message has failed since.")
            return
        if time.monotonic() - self._over_at > _SAME_OUTAGE_SECONDS:
            self._wait = _FIRST_WAIT
        while True:
            await asyncio.sleep(self._wait)
            self._wait = min(2 * self._wait, _MAX_WAIT)
            await self._target.renew()
            if await answers(self._target.alive, _ANSWER_SECONDS):
                break
        self._over_at = time.monotonic()
        self._begun.clear()
        self._over.set()
        self._resume()
        if not isinstance(self.reason, NothingAcceptedError):
            self._end("The broker answers again; claims are resumed.")

    def _end(self, message: str) -> None:
        if self.reason is not None:
            self.reason = None
            self._monitor.report("relay_resumed", message, level=logging.INFO)


async def answers(ask: Callable[[], Awaitable[bool]], seconds: float | None) -> bool:
    """Return whether a broker answers within some time."""
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except Exception:  # noqa: BLE001 - any error means that it does not answer
        return False
