"""The processes that a test starts in order to kill them."""

import asyncio
from typing import Generic, Protocol, TypeVar


class Orders(Protocol):
    """What a process is to do."""

    async def start(self) -> asyncio.subprocess.Process:
        """Start a process with these orders."""


_Orders = TypeVar("_Orders", bound=Orders)


class ProcessGroup(Generic[_Orders]):
    """Starts processes with the present orders, and kills those that are left."""

    def __init__(self, orders: _Orders) -> None:
        self.orders = orders
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self) -> asyncio.subprocess.Process:
        """Start one more process."""
        process = await self.orders.start()
        self._started.append(process)
        return process

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill a process, if it has not ended, and wait for its end."""
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def kill_all(self) -> None:
        """Kill all processes."""
        for process in self._started:
            await self.kill(process)
