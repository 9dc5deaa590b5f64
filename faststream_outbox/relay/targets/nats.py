"""NATS, core and JetStream."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from faststream.nats import NatsBroker
from faststream.nats.response import NatsPublishCommand
from faststream.response.publish_type import PublishType
from nats.errors import BadSubjectError, MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import CONFIRM_SECONDS, OutageError, RefusedError
from faststream_outbox.relay.targets.broker import BrokerTarget

_CORE: Final = "core:"
# JetStream drops a second message with the same one.
_MSG_ID: Final = "Nats-Msg-Id"
_REFUSED: Final = 400


class NatsTarget(BrokerTarget):
    """A subject of a JetStream stream, which confirms; or `core:subject`, whose messages reach whoever listens."""

    broker: NatsBroker

    def check(self, destination: str) -> None:
        """Refuse what nothing can be published to."""
        subject = destination.removeprefix(_CORE)
        if not subject or any(each in subject for each in " \t\r\n*>"):
            raise ValueError(f"{destination!r} is no subject that can be published to.")

    async def post(self, message: Outgoing) -> Awaitable[Any]:
        """Publish; JetStream answers, and of core NATS we wait until the server has it."""
        config = self.broker.config.broker_config
        core = message.destination.startswith(_CORE)
        command = NatsPublishCommand(
            message.payload,
            subject=message.destination.removeprefix(_CORE),
            headers={_MSG_ID: message.message_id, **message.headers},
            correlation_id=message.correlation_id,
            timeout=CONFIRM_SECONDS,
            _publish_type=PublishType.PUBLISH,
        )
        if not core:
            return asyncio.ensure_future(config.js_producer.publish(command))
        await config.producer.publish(command)
        return asyncio.ensure_future(self.broker.connection.flush())

    def translate(self, error: Exception) -> Exception:
        """Tell outages and refusals from the rest."""
        if isinstance(error, MaxPayloadError | BadSubjectError | NoStreamResponseError):
            return RefusedError(f"{type(error).__name__}: {error}")
        if isinstance(error, APIError):
            refused = error.code == _REFUSED
            return (RefusedError if refused else OutageError)(str(error))
        return OutageError(f"{type(error).__name__}: {error}")
