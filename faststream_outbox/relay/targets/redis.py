"""Redis: streams, lists and channels."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from faststream.redis import RedisBroker
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from redis import exceptions

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    HoldsLease,
    OneByOneTarget,
    OutageError,
    RefusedError,
    SentRun,
    error_text,
)

_KINDS: Final = ("stream", "list", "channel")
# Redis is full, a replica, or read-only for now. The client turns some error codes into classes and removes the code;
# others stay in the text.
_TEMPORARY: Final = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.AskError,
    exceptions.ConnectionError,
    exceptions.TimeoutError,
)
_TEMPORARY_CODES: Final = ("BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE")


class RedisTarget(OneByOneTarget):
    """A stream (`name` or `stream:name`), `list:name`, or `channel:name`, which only present subscribers receive."""

    broker: RedisBroker
    outages = (exceptions.RedisError, OSError)
    by_destination = False  # Redis accepts messages or not, whatever their destination
    one_of_a_key = False

    def check(self, destination: str) -> None:
        """Raise for a destination without a name."""
        if not _split(destination)[1]:
            raise ValueError(f"{destination!r} names nothing: give stream:name, list:name or channel:name.")

    async def alive(self) -> bool:
        """Ping Redis; if that fails, close the pool's idle connections, which are dead too."""
        await self.start()
        try:
            return bool(await self.client.ping())
        except exceptions.RedisError:
            await self.client.connection_pool.disconnect(inuse_connections=False)
            raise

    async def send(self, message: Outgoing) -> None:
        """Send one command; its answer is the confirmation."""
        await self.producer.publish(_command(message))

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all messages in one pipeline: single commands would need a connection each."""
        return await self._send_together(messages, transaction=False)

    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send a run in one transaction if it has one destination: Redis then accepts all messages or none."""
        if len({message.destination for message in run}) > 1 or not holds_lease():
            return await super().send_run(run, holds_lease)
        errors = await self._send_together(run, transaction=True)
        return next((SentRun(n, error) for n, error in enumerate(errors) if error is not None), SentRun(len(run)))

    async def _send_together(self, messages: Sequence[Outgoing], *, transaction: bool) -> list[Exception | None]:
        if not messages:
            return []
        refusals: list[Exception | None] = []
        try:
            async with asyncio.timeout(self.confirm_timeout), self.client.pipeline(transaction=transaction) as pipeline:
                for message in messages:
                    refusals.append(await self._add(message, pipeline))
                    if transaction and refusals[-1] is not None:
                        break  # the messages of a key behind it must wait
                results = iter(await pipeline.execute(raise_on_error=False) if None in refusals else ())
        except TimeoutError:
            return [OutageError(f"Redis has answered nothing for {self.confirm_timeout:g} seconds.")] * len(messages)
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            return [self.translate(error)] * len(messages)
        answers = (next(results) if refusal is None else refusal for refusal in refusals)
        return [self.translate(each) if isinstance(each, Exception) else None for each in answers]

    async def _add(self, message: Outgoing, pipeline: Any) -> RefusedError | None:
        """Add a message to a pipeline; return an error for one that cannot be encoded, so that the others are sent."""
        try:
            await self.producer.publish(_command(message, pipeline))
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so the message is the cause
            return RefusedError(error_text(error))
        return None

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that an answer of Redis means."""
        temporary = isinstance(error, _TEMPORARY) or _server_text(error).startswith(_TEMPORARY_CODES)
        if isinstance(error, exceptions.ResponseError) and not temporary:
            return RefusedError(error_text(error))
        if isinstance(error, exceptions.ConnectionError) and " connecting to " not in str(error):
            return ConnectionLostError(error_text(error))
        return super().translate(error)


def _server_text(error: Exception) -> str:
    """Return the text that Redis sent, without the command that the client puts before it in a pipeline."""
    return str(error).rpartition("of pipeline caused error: ")[2].lstrip("('\"")


def _command(message: Outgoing, pipeline: Any = None) -> RedisPublishCommand:
    kind, name = _split(message.destination)
    destination: dict[str, Any] = {kind: name}
    # FastStream writes the number of characters of a text where bytes must be counted: encode what is not ASCII.
    headers: dict[Any, Any] = {_encoded(name): _encoded(value) for name, value in message.headers.items()}
    return RedisPublishCommand(
        message.payload,
        headers=headers,
        correlation_id=message.correlation_id,
        pipeline=pipeline,
        _publish_type=PublishType.PUBLISH,
        **destination,
    )


def _split(destination: str) -> tuple[str, str]:
    kind, colon, name = destination.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("stream", destination)


def _encoded(text: str) -> str | bytes:
    return text if text.isascii() else text.encode()
