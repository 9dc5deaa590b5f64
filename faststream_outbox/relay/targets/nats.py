"""NATS, core and JetStream."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from math import ceil
from typing import Any, Final

from faststream.nats import NatsBroker
from faststream.nats.response import NatsPublishCommand
from faststream.response.publish_type import PublishType
from nats.errors import BadSubjectError, Error, MaxPayloadError, NoRespondersError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from faststream_outbox.publisher.nats_answers import (
    NatsDroppedError,
    NatsForbiddenError,
    nats_answer,
    nats_flushed,
    nats_permissions,
)
from faststream_outbox.publisher.nats_headers import NATS_MESSAGE_ID, check_key
from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    DestinationCheck,
    NotAcceptedError,
    OneByOneTarget,
    OutageError,
    RefusedError,
    error_text,
)

_CORE: Final = "core:"
# The subjects by which NATS is operated, and those of answers.
_INTERNAL: Final = ("$", "_INBOX.")
# Headers with such names tell JetStream what to do, such as to drop messages before this one.
_STEERING: Final = "nats-"
_BAD_REQUEST: Final = 400
# The account has used up its storage. NATS answers it as a bad request, and accepts the message when there is room.
_ACCOUNT_FULL: Final = 10002
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# The bytes around the headers.
_HEADERS_FRAME: Final = len("NATS/1.0\r\n\r\n")
# The parts of the time for a confirmation that a stream has, and the question after it whether there is one.
_ANSWER_SHARE: Final = 0.8
_QUESTION_SHARE: Final = 0.15
# A server closes the connection on a line over 4,096 bytes, which holds more than the subject.
_MAX_SUBJECT_BYTES: Final = 3_900

# What a user needs who may not ask which stream has a subject.
_GRANT: Final = "Let the user publish to '$JS.API.STREAM.NAMES', or make sure that the stream exists."


class NatsTarget(OneByOneTarget):
    """A subject of a JetStream stream, which confirms; or `core:subject`, which only present subscribers receive."""

    broker: NatsBroker
    refusals = (MaxPayloadError, BadSubjectError, NatsForbiddenError)
    unaccepted = (NatsDroppedError,)
    outages = (Error, OSError)
    # The server that the client is or was connected to.
    _server: Any = None

    def check(self, destination: str) -> None:
        """Raise for a subject that cannot be published to."""
        subject = destination.removeprefix(_CORE)
        if subject.startswith(_INTERNAL):
            raise ValueError(f"{destination[:100]!r} belongs to NATS itself: give a subject of your own.")
        if (
            "" in subject.split(".")
            or any(each in subject for each in " \t\r\n*>")
            or len(subject.encode()) > _MAX_SUBJECT_BYTES
        ):
            raise ValueError(
                f"{destination[:100]!r} cannot be published to: give a subject of at most {_MAX_SUBJECT_BYTES} bytes, "
                "without spaces, wildcards and empty parts."
            )

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask JetStream which stream has a subject; core NATS has nothing to be created."""
        if destination.startswith(_CORE):
            return DestinationCheck(f"{destination!r} needs no stream: the subscribers of the moment receive it")
        try:
            stream = await self._find_stream(destination)
        except NotFoundError:
            name = re.sub(r"\W", "_", destination).upper()
            how = f"nats stream add {name} --subjects {destination}"
            wrong = f"no JetStream stream has the subject {destination!r}: create one, for instance by {how}; or route"
            return DestinationCheck(f"{wrong} to 'core:{destination}', which confirms nothing", found=False)
        except NatsForbiddenError as error:
            return DestinationCheck(f"{destination!r} cannot be checked: {error} {_GRANT}".rstrip("."), found=False)
        except (ServiceUnavailableError, NoRespondersError, TimeoutError) as error:
            return DestinationCheck(f"JetStream is not available for {destination!r}: {error_text(error)}", found=False)
        return DestinationCheck(f"stream {stream!r} has the subject {destination!r}")

    async def _find_stream(self, subject: str) -> str:
        """Return the name of the stream that has a subject; raise `NatsForbiddenError` if the user may not ask."""
        client = self._connected_client
        streams = self.broker.config.broker_config.connection_state.stream
        question = f"{streams._prefix}.STREAM.NAMES"  # noqa: SLF001 - the client has no public name for it
        with nats_permissions(client, [question]) as check:
            asking = streams.find_stream_name_by_subject(subject)
            found = await nats_answer(client, asking, client.stats["reconnects"], check=partial(check, question))
        return str(found)

    async def alive(self) -> bool:
        """Exchange a ping with the server; replace a client that has given up, even the application's."""
        if self.client is not None and self.client.is_closed:
            self._forget_client()
        await self.start()
        async with self._flushed():
            return True

    async def reachable(self) -> bool:
        """Connect to the server that the client was connected to, which greets each client."""
        reader, writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        try:
            return (await reader.readline()).startswith(b"INFO")
        finally:
            writer.close()

    @property
    def connection(self) -> object:
        """The number of the connection; None while there is none."""
        client = self.client
        if client is None or not client.is_connected:
            return None
        self._server = client.connected_url
        return id(client), client.stats["reconnects"]

    async def stop(self) -> None:
        """Disconnect; FastStream would drain the client, which fails without a server."""
        client = self.client
        if self._connected and client is not None and not client.is_connected:
            await client.close()
            self._forget_client()
        await super().stop()

    def _forget_client(self) -> None:
        self.broker._connection = None  # noqa: SLF001 - FastStream has no public name for it

    @property
    def _connected_client(self) -> Any:
        if self.client is None or not self.client.is_connected:
            raise OutageError("NATS is not connected.")
        return self.client

    def _flushed(self, size: int = 0) -> AbstractAsyncContextManager[None]:
        return nats_flushed(self._connected_client, ceil(self.seconds_for(size)))

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all messages, then wait for all; one flush confirms all messages of core NATS."""
        if not all(message.destination.startswith(_CORE) for message in messages):
            return await super().send_each(messages)
        connection, size = self.connection, sum(message.size for message in messages)
        try:
            async with self.window(_CORE).room(size, self.confirm_timeout), asyncio.timeout(self.seconds_for(size)):
                with nats_permissions(self._connected_client, map(_subject, messages)) as check:
                    async with self._flushed(size):
                        errors = [await self._try(self._publish(message), message.destination) for message in messages]
                    return [error or self._dropped(each, check) for each, error in zip(messages, errors, strict=True)]
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            return [self._unless_lost(connection, self.translate(error))] * len(messages)

    async def send(self, message: Outgoing) -> None:
        """Publish a message and wait for the stream's answer, or on core NATS until the server has it."""
        subject = _subject(message)
        with nats_permissions(self._connected_client, [subject]) as check:
            if message.destination.startswith(_CORE):
                async with self._flushed(message.size):
                    await self._publish(message)
                check(subject)
            else:
                await self._send_to_stream(message, partial(check, subject))

    async def _send_to_stream(self, message: Outgoing, check: Callable[[], None]) -> None:
        command = self._command(message, _ANSWER_SHARE * self.seconds_for(message.size))
        try:
            publishing = self.broker.config.broker_config.js_producer.publish(command)
            await nats_answer(self.client, publishing, self.client.stats["reconnects"], check=check)
        except (NoStreamResponseError, TimeoutError) as error:
            raise await self._no_stream(message.destination) from error
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            # A subscriber answered, and not a stream. If there is a stream too, the error counts as an attempt.
            if isinstance(refusal := await self._no_stream(message.destination), RefusedError):
                raise refusal from error
            raise

    def _dropped(self, message: Outgoing, check: Callable[[str], None]) -> Exception | None:
        try:
            check(_subject(message))
        except (NatsForbiddenError, NatsDroppedError) as error:
            return self.translate(error)
        return None

    async def _publish(self, message: Outgoing) -> None:
        await self.producer.publish(self._command(message))

    async def _no_stream(self, subject: str) -> Exception:
        """Return why no stream answered: none has the subject, or JetStream is not available."""
        try:
            async with asyncio.timeout(_QUESTION_SHARE * self.confirm_timeout):
                stream = await self._find_stream(subject)
        except NotFoundError:
            return RefusedError(
                f"No JetStream stream has the subject {subject!r}: create one, or route to 'core:{subject}'."
            )
        except NatsForbiddenError as error:
            unknown = f"No JetStream stream confirms {subject!r}, and the relay cannot ask whether there is one"
            return NotAcceptedError(f"{unknown}. {error} {_GRANT}")
        except TimeoutError:
            unknown = f"Neither a JetStream stream of {subject!r} nor JetStream itself answers"
            return NotAcceptedError(f"{unknown}. Is the user allowed to subscribe to '_INBOX.>', where answers go?")
        return NotAcceptedError(f"Stream {stream!r} does not answer.")

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that an answer of NATS means."""
        if isinstance(error, APIError):
            refused = error.code == _BAD_REQUEST and error.err_code != _ACCOUNT_FULL
            return (RefusedError if refused else NotAcceptedError)(str(error))
        return super().translate(error)

    def _command(self, message: Outgoing, timeout: float = 0.0) -> NatsPublishCommand:
        """Make a command; raise for one on which the server would close the connection, and fail other messages."""
        try:
            check_key(message.key)
        except ValueError as error:
            raise RefusedError(str(error)) from error
        headers = {"content-type": ""}
        headers |= {name: value for name, value in message.headers.items() if not _steers(name)}
        headers[NATS_MESSAGE_ID] = message.message_id
        for name in headers:
            if name.strip() and not _HEADER_NAME.fullmatch(name.strip()):
                raise RefusedError(f"NATS accepts no header of the name {name!r}.")
        size = len(message.payload) + _HEADERS_FRAME
        size += sum(len(name) + len(value.encode()) + len(": \r\n") for name, value in headers.items())
        if size > (limit := self._connected_client.max_payload):
            raise RefusedError(
                f"The message has {size:,} bytes with its headers, more than the {limit:,} of NATS' max_payload."
            )
        return NatsPublishCommand(
            message.payload,
            subject=_subject(message),
            headers=headers,
            correlation_id=message.correlation_id,
            timeout=timeout,
            _publish_type=PublishType.PUBLISH,
        )


def _subject(message: Outgoing) -> str:
    return message.destination.removeprefix(_CORE)


def _steers(name: str) -> bool:
    """Return whether a header tells the server what to do with a message; the client removes spaces around a name."""
    return name.strip().lower().startswith(_STEERING)
