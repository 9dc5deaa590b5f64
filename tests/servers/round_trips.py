"""What goes to a server by FastStream's broker for it, and comes back by the same broker."""

import asyncio
from typing import Any


async def received(broker: Any, subscriber: Any, number: int = 1) -> list[str]:
    """Run a broker until its subscriber got so many messages."""
    bodies = _listen(subscriber)
    async with broker:
        await broker.start()
        async with asyncio.timeout(60):
            return [await bodies.get() for _ in range(number)]


async def echoed(broker: Any, subscriber: Any, body: str, **destination: Any) -> list[str]:
    """Publish to a subscriber that listens already, and give what it got."""
    bodies = _listen(subscriber)
    async with broker:
        await broker.start()
        await broker.publish(body, **destination)
        async with asyncio.timeout(60):
            return [await bodies.get()]


def _listen(subscriber: Any) -> asyncio.Queue[str]:
    bodies: asyncio.Queue[str] = asyncio.Queue()

    async def handle(body: str) -> None:
        await bodies.put(body)

    subscriber(handle)
    return bodies
