"""Renews the leases of rows in hand, so that a lease can be short although a handler takes long."""

import asyncio
from typing import Final

from faststream_outbox.engine.context import EngineContext
from faststream_outbox.runtime.loop import Loop
from faststream_outbox.storage.clock import lease_now

# Two renewals in a row may fail before a lease is lost.
_RENEWALS_PER_LEASE: Final = 3


class LeaseRenewer(Loop):
    """Renews all leases in one statement, three times per lease."""

    failure_event = "renew_failed"
    task = "Renewing leases"

    def __init__(self, context: EngineContext) -> None:
        super().__init__(context.monitor)
        self._lane = context.claim_lane
        self._ledger = context.ledger
        self._lease_seconds = context.options.lease_ttl_seconds

    async def step(self) -> None:
        """Wait for a third of a lease, then renew."""
        await asyncio.sleep(self._lease_seconds / _RENEWALS_PER_LEASE)
        await self.renew()

    async def renew(self) -> None:
        """Renew all leases in hand. A lease that was lost is not extended, and its row is not started after its end."""
        leases = self._ledger.leases()
        if not leases:
            return
        began = lease_now()
        renewed = await self._lane.run(lambda lane: lane.renew(leases, lease_seconds=self._lease_seconds))
        self._ledger.extend(renewed, began + self._lease_seconds)
