"""Servers of other makers, on loopback, for as long as a test needs them."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@asynccontextmanager
async def running(port: int, *command: str, **options: Any) -> AsyncIterator[None]:
    """Start a program and wait until it takes connections."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, **options
    )
    try:
        async with asyncio.timeout(20):
            while not await _accepts(port):
                assert process.returncode is None, f"{command[0]} did not start"
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def redis_server() -> AsyncIterator[str]:
    """Start a Redis, and give its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        async with running(port, *command):
            yield f"redis://127.0.0.1:{port}"


@asynccontextmanager
async def nats_server() -> AsyncIterator[str]:
    """Start a NATS with JetStream, and give its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        command = ["nats-server", "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", directory]
        async with running(port, *command):
            yield f"nats://127.0.0.1:{port}"


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
