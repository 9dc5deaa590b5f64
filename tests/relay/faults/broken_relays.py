"""Relays with one thing wrong each, which the checker has to find. None of it is in the library."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

from faststream_outbox.relay import Relay
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import HoldsLease, LeaseLostError, RefusedError, SentRun
from tests.relay.faults.worker import BusyRelay

# The share of messages that the target does not take at once.
FAILED_SENDS: Final = 0.05
# The share of runs that a relay stalls with, and for how long it does so at all: then it has to come to an end.
STALLS: Final = 0.1
STALLING_SECONDS: Final = 4.0


def settled_unconfirmed(relay: Relay) -> None:
    """Call messages sent that are on their way."""
    target, send = relay._target, relay._target.send_run
    on_their_way: set[asyncio.Task[SentRun]] = set()

    async def send_run(run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        sending = asyncio.create_task(send(run, holds_lease))
        on_their_way.add(sending)
        sending.add_done_callback(on_their_way.discard)
        return SentRun(len(run))

    target.send_run = send_run  # type: ignore[method-assign] # that is what is spoiled


def all_at_once(relay: Relay) -> None:
    """Send the messages of a key at the same time, as those without one."""
    target, send = relay._target, relay._target.send_run

    async def send_run(run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        for n, sent in enumerate(await asyncio.gather(*(send([message], holds_lease) for message in run))):
            if sent.error is not None:
                return SentRun(n, sent.error)
        return SentRun(len(run))

    target.send_run = send_run  # type: ignore[method-assign] # that is what is spoiled


def failed_sends(relay: Relay, *, go_on: bool = False) -> None:
    """Let the target take some messages at the second attempt only; that alone does no harm."""
    target, send = relay._target, relay._target.send_run

    async def send_run(run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        # No fault of a message's own, so it is none of its attempts.
        failed = next((n for n in range(len(run)) if random.random() < FAILED_SENDS), None)
        if failed is None:
            return await send(run, holds_lease)
        sent = await send(run[:failed], holds_lease) if failed else SentRun(0)
        if go_on and failed + 1 < len(run):
            await send(run[failed + 1 :], holds_lease)
        return sent if sent.error is not None else SentRun(failed, LeaseLostError("a failed send"))

    target.send_run = send_run  # type: ignore[method-assign] # that is what is spoiled


def past_a_failure(relay: Relay) -> None:
    """Go on with a key behind a message that was not taken."""
    failed_sends(relay, go_on=True)


def stalls(relay: Relay) -> None:
    """Lose leases before anything is sent under them; that alone does no harm."""
    assert isinstance(relay, BusyRelay)
    start = relay.start

    async def do_not_renew() -> None: ...

    async def start_to_stall() -> None:
        await start()
        assert relay._pipeline is not None
        relay._pipeline._lease_renewer.renew = do_not_renew  # type: ignore[method-assign] # or no lease would be lost

    until = time.monotonic() + STALLING_SECONDS

    async def stall() -> None:
        if time.monotonic() < until and random.random() < STALLS:
            await asyncio.sleep(1.5 * relay._options.lease_ttl_seconds)

    relay.before_sending = stall
    relay.start = start_to_stall  # type: ignore[method-assign] # there is no pipeline before


def lease_ignored(relay: Relay) -> None:
    """Send what was claimed, however long ago that was."""
    stalls(relay)
    target, send = relay._target, relay._target.send_run

    async def send_run(run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        del holds_lease
        return await send(run, lambda: True)

    target.send_run = send_run  # type: ignore[method-assign] # that is what is spoiled


def outages_blamed(relay: Relay) -> None:
    """Take an outage for a failure of whatever was to be sent."""
    relay._target.translate = lambda error: error  # type: ignore[method-assign] # that is what is spoiled


def outages_refused(relay: Relay) -> None:
    """Take an outage for a refusal."""
    relay._target.translate = lambda error: RefusedError(str(error))  # type: ignore[method-assign] # same
