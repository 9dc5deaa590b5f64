"""Redis: streams, lists and channels."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from faststream.redis import RedisBroker
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from redis.exceptions import (
    AskError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError, SentRun, StillOurs
from faststream_outbox.relay.targets.one_by_one import OneByOneTarget

_KINDS: Final = ("stream", "list", "channel")
# Answers that say that it is full, a replica, or not to be written to: it will be well again. The client knows some of
# them by their codes, which it takes away, and leaves those of others.
_PASSING: Final = (
    *(OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError, AskError),
    *(RedisConnectionError, RedisTimeoutError),
)
_PASSING_CODES: Final = ("BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE")


class RedisTarget(OneByOneTarget):
    """A stream, by its name or as `stream:name`; `list:name`; or `channel:name`, whose messages reach who listens."""

    broker: RedisBroker

    def check(self, destination: str) -> None:
        """Refuse what has no name."""
        if not _split(destination)[1]:
            raise ValueError("A destination of Redis is stream:name, list:name or channel:name.")

    async def alive(self) -> bool:
        """Ask it for a sign of life; if there is none, the pool's other connections are as dead, and are not kept."""
        await self.start()
        try:
            return bool(await self._client.ping())
        except RedisError:
            await self._client.connection_pool.disconnect(inuse_connections=False)
            raise

    @property
    def _client(self) -> Any:
        return self.broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise

    async def send(self, message: Outgoing) -> None:
        """Send one command; its answer is the confirmation."""
        await self.producer.publish(_command(message))

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all in one go: a command by itself would need a connection by itself."""
        return await self._send_together(messages, transaction=False)

    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send all of a run in one transaction, if they go to one place: there all are taken, or none."""
        if len({message.destination for message in run}) > 1 or not still_ours():
            return await super().send_run(run, still_ours)
        errors = await self._send_together(run, transaction=True)
        return next((SentRun(n, error) for n, error in enumerate(errors) if error is not None), SentRun(len(run)))

    async def _send_together(self, messages: Sequence[Outgoing], *, transaction: bool) -> list[Exception | None]:
        if not messages:
            return []
        refusals: list[Exception | None] = []
        try:
            async with asyncio.timeout(self.patience), self._client.pipeline(transaction=transaction) as pipeline:
                for message in messages:
                    refusals.append(await self._put(message, pipeline))
                    if transaction and refusals[-1] is not None:
                        break  # what is behind it has to wait for it
                results = iter(await pipeline.execute(raise_on_error=False) if None in refusals else ())
        except TimeoutError:
            return [self.silence(messages[0].destination)] * len(messages)
        except Exception as error:  # noqa: BLE001 - whoever sent it decides
            return [self.translate(error)] * len(messages)
        answers = (next(results) if refusal is None else refusal for refusal in refusals)
        return [self.translate(each) if isinstance(each, Exception) else None for each in answers]

    async def _put(self, message: Outgoing, pipeline: Any) -> RefusedError | None:
        """Have a message sent with others; one that cannot be written down is refused, and they are not."""
        try:
            await self.producer.publish(_command(message, pipeline))
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it is the message
            return RefusedError(f"{type(error).__name__}: {error}")
        return None

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        passing = isinstance(error, _PASSING) or _own_words(error).startswith(_PASSING_CODES)
        if isinstance(error, ResponseError) and not passing:
            return RefusedError(f"{type(error).__name__}: {error}")
        if isinstance(error, RedisError | OSError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error


def _own_words(error: Exception) -> str:
    """Return what Redis has said; the client puts the command before it, if that was one of several."""
    return str(error).rpartition("of pipeline caused error: ")[2].lstrip("('\"")


def _command(message: Outgoing, pipeline: Any = None) -> RedisPublishCommand:
    kind, name = _split(message.destination)
    destination: dict[str, Any] = {kind: name}
    return RedisPublishCommand(
        message.payload,
        headers=_headers(message),
        correlation_id=message.correlation_id,
        pipeline=pipeline,
        _publish_type=PublishType.PUBLISH,
        **destination,
    )


def _split(destination: str) -> tuple[str, str]:
    kind, colon, name = destination.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("stream", destination)


def _headers(message: Outgoing) -> dict[Any, Any]:
    """Give what is not ASCII as bytes: FastStream counts the characters of text where it writes bytes."""
    return {_countable(name): _countable(value) for name, value in message.headers.items()}


def _countable(text: str) -> str | bytes:
    return text if text.isascii() else text.encode()
