"""Waits for a confirmation for as long as it takes, and says so when it takes long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from faststream_outbox.relay.targets.base import CONFIRM_SECONDS, OutageError


async def confirmed(confirmation: Awaitable[Any], where: str, report_outage: Callable[[Exception], None]) -> None:
    """Wait for the confirmation of a client that goes on sending by itself: what is sent again would be there twice."""
    future = asyncio.ensure_future(confirmation)
    while not (await asyncio.wait({future}, timeout=CONFIRM_SECONDS))[0]:
        report_outage(OutageError(f"{where} has confirmed nothing for {CONFIRM_SECONDS:g} seconds."))
    future.result()
