"""NATS, core and JetStream."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import Any, Final

from faststream.nats import NatsBroker
from faststream.nats.response import NatsPublishCommand
from faststream.response.publish_type import PublishType
from nats.errors import BadSubjectError, Error, MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import OutageError, RefusedError
from faststream_outbox.relay.targets.one_by_one import OneByOneTarget

_CORE: Final = "core:"
# JetStream drops a second message with the same one.
_MSG_ID: Final = "Nats-Msg-Id"
_REFUSED: Final = 400
# What a name of a header is made of.
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What stands around the headers.
_HEADERS_FRAME: Final = len("NATS/1.0\r\n\r\n")
# A server hangs up on a line of more than 4,096 bytes, in which there is more than the subject.
_LONGEST_SUBJECT: Final = 3_900
# How often it is looked whether the connection that an answer is to come on is still there.
_LOOK_SECONDS: Final = 0.5


class NatsTarget(OneByOneTarget):
    """A subject of a JetStream stream, which confirms; or `core:subject`, whose messages reach whoever listens."""

    broker: NatsBroker

    def check(self, destination: str) -> None:
        """Refuse what nothing can be published to."""
        subject = destination.removeprefix(_CORE)
        if not subject or any(each in subject for each in " \t\r\n*>") or len(subject.encode()) > _LONGEST_SUBJECT:
            raise ValueError(f"{destination[:100]!r} is no subject that can be published to.")

    async def alive(self) -> bool:
        """Ask the server for a sign of life; a client that has given up, whoever made it, is replaced."""
        if self._client is not None and self._client.is_closed:
            self._forget_client()
        await self.start()
        async with self._flushed():
            return True

    async def stop(self) -> None:
        """Disconnect; a client without a server cannot be drained, as FastStream would have it."""
        client = self._client
        if self._connected and client is not None and not client.is_connected:
            await client.close()
            self._forget_client()
        await super().stop()

    @property
    def _client(self) -> Any:
        return self.broker._connection  # noqa: SLF001 - FastStream does not tell it otherwise

    def _forget_client(self) -> None:
        self.broker._connection = None  # noqa: SLF001 - same

    @property
    def _connected_client(self) -> Any:
        if self._client is None or not self._client.is_connected:
            raise OutageError("NATS is not connected.")
        return self._client

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
            await self._publish(message)
        except Exception as error:  # noqa: BLE001 - same
            return self.translate(error)
        return None

    async def send(self, message: Outgoing) -> None:
        """Publish; JetStream answers, and of core NATS we wait until the server has it."""
        if message.destination.startswith(_CORE):
            async with self._flushed():
                await self._publish(message)
            return
        command = self._command(message, self.patience)
        try:
            await self._answered(self.broker.config.broker_config.js_producer.publish(command))
        except NoStreamResponseError as error:
            raise await self._no_stream(message.destination) from error

    async def _publish(self, message: Outgoing) -> None:
        await self.producer.publish(self._command(message))

    async def _no_stream(self, subject: str) -> Exception:
        """Tell why no stream has answered: none is there for the subject, or JetStream itself is not well."""
        try:
            stream = await self.broker.config.broker_config.connection_state.stream.find_stream_name_by_subject(subject)
        except NotFoundError:
            return RefusedError(
                f"No JetStream stream takes the subject {subject!r}: create one, or route to 'core:{subject}'."
            )
        return OutageError(f"Stream {stream!r} does not answer.")

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
        client = self._connected_client
        connections = client.stats["reconnects"]
        yield
        await client.flush(ceil(self.patience))
        # While it is disconnected, a flush returns at once and means nothing.
        if not client.is_connected or client.stats["reconnects"] != connections:
            raise OutageError("The connection to NATS was lost.")

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, MaxPayloadError | BadSubjectError):
            return RefusedError(f"{type(error).__name__}: {error}")
        if isinstance(error, APIError):
            refused = error.code == _REFUSED
            return (RefusedError if refused else OutageError)(str(error))
        if isinstance(error, Error | OSError):
            return OutageError(f"{type(error).__name__}: {error}")
        return error

    def _command(self, message: Outgoing, timeout: float = 0.0) -> NatsPublishCommand:
        """Make a command, unless the server would hang up on it: on all the other messages, that is."""
        headers = {"content-type": "", **message.headers, _MSG_ID: message.message_id}
        for name in headers:
            if name.strip() and not _NAME.fullmatch(name.strip()):
                raise RefusedError(f"{name!r} is no name of a header that NATS takes.")
        size = len(message.payload) + _HEADERS_FRAME
        size += sum(len(name) + len(value.encode()) + len(": \r\n") for name, value in headers.items())
        if size > (most := self._connected_client.max_payload):
            raise RefusedError(
                f"The message has {size:,} bytes with its headers, and NATS takes {most:,} (max_payload)."
            )
        return NatsPublishCommand(
            message.payload,
            subject=message.destination.removeprefix(_CORE),
            headers=headers,
            correlation_id=message.correlation_id,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )
