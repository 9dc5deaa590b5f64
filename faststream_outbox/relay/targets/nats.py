"""NATS, core and JetStream."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, Final

from faststream.nats import NatsBroker
from faststream.nats.response import NatsPublishCommand
from faststream.response.publish_type import PublishType
from nats.errors import BadSubjectError, MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.one_by_one import OneByOneTarget

_CORE: Final = "core:"
# JetStream drops a second message with the same one.
_MSG_ID: Final = "Nats-Msg-Id"
_REFUSED: Final = 400
# How often it is looked whether the connection that an answer is to come on is still there.
_LOOK_SECONDS: Final = 0.5


class NatsTarget(OneByOneTarget):
    """A subject of a JetStream stream, which confirms; or `core:subject`, whose messages reach whoever listens."""

    broker: NatsBroker

    def check(self, destination: str) -> None:
        """Refuse what nothing can be published to."""
        subject = destination.removeprefix(_CORE)
        if not subject or any(each in subject for each in " \t\r\n*>"):
            raise ValueError(f"{destination!r} is no subject that can be published to.")

    async def alive(self) -> bool:
        """Ask the server for a sign of life; a client that has given up is connected anew."""
        if self._connected and self._client.is_closed:
            await self.stop()
        await self.start()
        async with self._flushed():
            return True

    @property
    def _client(self) -> Any:
        return self.broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all of them, then wait for all: core NATS tells of all at once that the server has them."""
        if not all(message.destination.startswith(_CORE) for message in messages):
            return await super().send_each(messages)
        try:
            async with self._flushed():
                return [await self._published(message) for message in messages]
        except Exception as error:  # noqa: BLE001 - whoever sent them decides
            return [self.translate(error)] * len(messages)

    async def _published(self, message: Outgoing) -> Exception | None:
        try:
            await self.producer.publish(_command(message))
        except Exception as error:  # noqa: BLE001 - same
            return self.translate(error)
        return None

    async def send(self, message: Outgoing) -> None:
        """Publish; JetStream answers, and of core NATS we wait until the server has it."""
        if not message.destination.startswith(_CORE):
            publishing = self.broker.config.broker_config.js_producer.publish(_command(message, self.patience))
            try:
                await self._answered(publishing)
            except NoStreamResponseError:
                subject = message.destination
                raise RefusedError(
                    f"No JetStream stream takes the subject {subject!r}: create one, or route to 'core:{subject}'."
                ) from None
            return
        async with self._flushed():
            await self.producer.publish(_command(message))

    async def _answered(self, publishing: Coroutine[Any, Any, Any]) -> None:
        """Wait for the stream's answer, unless the connection is lost: then it never comes, and nobody says so."""
        connections = self._client.stats["reconnects"]
        sending = asyncio.ensure_future(publishing)
        try:
            while not (await asyncio.wait({sending}, timeout=_LOOK_SECONDS))[0]:
                if not self._client.is_connected or self._client.stats["reconnects"] != connections:
                    raise OutageError("The connection to NATS was lost.")
            sending.result()
        finally:
            sending.cancel()

    @asynccontextmanager
    async def _flushed(self) -> AsyncIterator[None]:
        """See that the server has got what is published meanwhile; a client without a server would only keep it."""
        if not self._client.is_connected:
            raise OutageError("NATS is not connected.")
        connections = self._client.stats["reconnects"]
        yield
        await self._client.flush(ceil(self.patience))
        # While it is disconnected, a flush returns at once and means nothing.
        if not self._client.is_connected or self._client.stats["reconnects"] != connections:
            raise OutageError("The connection to NATS was lost.")

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, MaxPayloadError | BadSubjectError):
            return RefusedError(f"{type(error).__name__}: {error}")
        if isinstance(error, APIError):
            refused = error.code == _REFUSED
            return (RefusedError if refused else OutageError)(str(error))
        return (
            error if isinstance(error, OutageError | RefusedError) else OutageError(f"{type(error).__name__}: {error}")
        )


def _command(message: Outgoing, timeout: float = 0.0) -> NatsPublishCommand:
    return NatsPublishCommand(
        message.payload,
        subject=message.destination.removeprefix(_CORE),
        headers={_MSG_ID: message.message_id, **message.headers},
        correlation_id=message.correlation_id,
        timeout=timeout,
        _publish_type=PublishType.PUBLISH,
    )
