"""A stream of Redis that a relay sends to."""

from typing import Any

from faststream.redis.parser import BinaryMessageFormatV1
from redis.asyncio import Redis

from tests.cli.programs import TIMEOUT
from tests.waiting import until


class RedisStream:
    def __init__(self, client: Redis, name: str) -> None:
        self.name = name
        self._client = client

    def named(self, name: str) -> "RedisStream":
        """Return another stream of the same server."""
        return RedisStream(self._client, name)

    async def messages(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Return the bodies and headers that have arrived."""
        entries: Any = await self._client.xrange(self.name)
        return [BinaryMessageFormatV1.parse(fields[b"__data__"]) for _, fields in entries]

    async def numbers(self, count: int) -> list[int]:
        """Wait for at least `count` messages, and return their bodies as numbers."""
        messages = await until(self.messages, lambda found: len(found) >= count, seconds=TIMEOUT)
        return [int(body) for body, _ in messages]

    async def replace_by_text(self) -> None:
        """Replace the stream by a value of another type, so that Redis refuses messages for it."""
        await self._client.set(self.name, "no stream")
