"""A stream of Redis, read by whoever wants to know what has arrived."""

import asyncio
from typing import Any

from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis

from tests.cli.programs import PATIENCE


class RedisStream:
    def __init__(self, client: Redis, name: str) -> None:
        self.name = name
        self._client = client

    async def messages(self) -> list[tuple[bytes, dict[str, Any]]]:
        """What has arrived: bodies and headers."""
        entries: Any = await self._client.xrange(self.name)
        return [BinaryMessageFormatV1.parse(fields[b"__data__"]) for _, fields in entries]

    async def numbers(self, count: int) -> list[int]:
        """Wait for so many messages whose bodies are numbers."""
        async with asyncio.timeout(PATIENCE):
            while len(messages := await self.messages()) < count:
                await asyncio.sleep(0.02)
        return [int(body) for body, _ in messages]

    async def spoil(self) -> None:
        """Put something else in its place, so that nothing can be sent to it."""
        await self._client.set(self.name, "no stream")
