"""Redis: streams, lists and channels."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from faststream.redis import RedisBroker
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import CONFIRM_SECONDS, OutageError, RefusedError
from faststream_outbox.relay.targets.broker import BrokerTarget

_KINDS: Final = ("stream", "list", "channel")
# Answers that say that it is full, loading, or a replica: it will be well again.
_PASSING: Final = ("OOM", "LOADING", "READONLY", "MASTERDOWN", "BUSY", "CLUSTERDOWN", "TRYAGAIN", "MISCONF")


class RedisTarget(BrokerTarget):
    """A stream, by its name or as `stream:name`; `list:name`; or `channel:name`, whose messages reach who listens."""

    broker: RedisBroker

    def check(self, destination: str) -> None:
        """Refuse what has no name."""
        if not _split(destination)[1]:
            raise ValueError("A destination of Redis is stream:name, list:name or channel:name.")

    async def post(self, message: Outgoing) -> Awaitable[Any]:
        """Send one command; its answer is the confirmation."""
        sending: Awaitable[Any] = asyncio.ensure_future(self.producer.publish(_command(message)))
        return sending

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all in one go: a command by itself would need a connection by itself."""
        return await self._send_together(messages, transaction=False)

    async def send_run(self, run: Sequence[Outgoing]) -> tuple[int, Exception | None]:
        """Send all of a run in one transaction, if they go to one place: there all are taken, or none."""
        if len({message.destination for message in run}) > 1:
            return await super().send_run(run)
        errors = await self._send_together(run, transaction=True)
        failed = next((n for n, error in enumerate(errors) if error is not None), len(errors))
        return failed, errors[failed] if failed < len(errors) else None

    async def _send_together(self, messages: Sequence[Outgoing], *, transaction: bool) -> list[Exception | None]:
        if not messages:
            return []
        client: Any = self.broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise
        try:
            async with asyncio.timeout(CONFIRM_SECONDS), client.pipeline(transaction=transaction) as pipeline:
                for message in messages:
                    await self.producer.publish(_command(message, pipeline))
                results = await pipeline.execute(raise_on_error=False)
        except TimeoutError:
            return [OutageError(f"No answer came in {CONFIRM_SECONDS:g} seconds.")] * len(messages)
        except Exception as error:  # noqa: BLE001 - whoever sent it decides
            return [self.translate(error)] * len(messages)
        return [self.translate(each) if isinstance(each, Exception) else None for each in results]

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, ResponseError) and not str(error).startswith(_PASSING):
            if isinstance(error, RedisConnectionError | RedisTimeoutError):
                return OutageError(f"{type(error).__name__}: {error}")
            return RefusedError(f"{type(error).__name__}: {error}")
        if isinstance(error, RedisError | OSError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error


def _command(message: Outgoing, pipeline: Any = None) -> RedisPublishCommand:
    kind, name = _split(message.destination)
    destination: dict[str, Any] = {kind: name}
    return RedisPublishCommand(
        message.payload,
        headers=dict(message.headers),
        correlation_id=message.correlation_id,
        pipeline=pipeline,
        _publish_type=PublishType.PUBLISH,
        **destination,
    )


def _split(destination: str) -> tuple[str, str]:
    kind, colon, name = destination.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("stream", destination)
