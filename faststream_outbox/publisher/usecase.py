"""A publisher of one queue: called by the user, or by FastStream with what a handler returned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from faststream.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from faststream_outbox._faststream import (
    PublisherMiddleware,
    PublisherSpecification,
    PublisherSpecificationConfig,
    PublisherUsecase,
    PublisherUsecaseConfig,
)
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import CORRELATION_ID
from faststream_outbox.publisher.answers import prepare_answer
from faststream_outbox.publisher.producer import NO_REQUESTS
from faststream_outbox.response import OutboxPublishCommand, check_asynchronous
from faststream_outbox.storage import AnySession, TimerConflict
from faststream_outbox.storage.checks import check_name, encode_headers


@dataclass(kw_only=True)
class OutboxPublisherConfig(PublisherUsecaseConfig):
    """The options of a publisher."""

    _outer_config: OutboxBrokerConfig = field(default_factory=OutboxBrokerConfig)

    queue: str
    headers: Mapping[str, Any] | None
    reply_to: str


@dataclass(kw_only=True)
class OutboxPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What FastStream documents of every publisher, and the queue."""

    queue: str


class OutboxPublisherSpecification(PublisherSpecification[OutboxBrokerConfig, OutboxPublisherSpecificationConfig]):
    """The channel of a publisher in the AsyncAPI document: its queue."""

    __slots__ = ()

    @property
    def queue(self) -> str:
        """The queue, prefixes included."""
        return f"{self._outer_config.prefix}{self.config.queue}"

    @property
    def name(self) -> str:
        """The channel's key."""
        return self.config.title_ or f"{self.queue}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        spec = PublisherSpec(
            address=self.queue,
            description=self.config.description_,
            operation=Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None),
            bindings=None,
        )
        return {self.name: spec}


class OutboxPublisher(PublisherUsecase):
    """Publishes to one queue.

    On a handler of the same broker, the statement that deletes the handler's message inserts what it returns.

    Example:
        confirmations = broker.publisher("confirmations")

        @confirmations
        @broker.subscriber("orders")
        async def confirm(order_id: int) -> dict[str, int]:
            return {"confirmed": order_id}

        await confirmations.publish({"confirmed": 1}, session=session)

    """

    _outer_config: OutboxBrokerConfig

    def __init__(self, config: OutboxPublisherConfig, specification: OutboxPublisherSpecification) -> None:
        check_name("queue", config.queue)
        encode_headers(config.headers)
        if config.reply_to:
            check_name("reply_to", config.reply_to)
        super().__init__(config, cast("PublisherSpecification", specification))
        self._queue = config.queue
        self.headers = dict(config.headers or {})
        self.reply_to = config.reply_to

    @property
    def queue(self) -> str:
        """The queue, prefixes included."""
        return f"{self._outer_config.prefix}{self._queue}"

    async def publish(
        self,
        body: Any = None,
        queue: str = "",
        *,
        session: AnySession = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """Insert one message through your transaction; it is delivered after the commit.

        Args:
            body: Anything FastStream can encode; bytes are stored unchanged.
            queue: A queue in place of the publisher's; no prefix is added to it.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.
            headers: Names with values that JSON can hold; they replace those of the publisher with the same name.
            correlation_id: Given to the handler, and to the messages that it publishes; by default what the broker's
                `id_generator` makes, or the id of the row.
            reply_to: The queue for the answer, in place of the publisher's.
            key: Messages with the same key are delivered in the order of their commits, one at a time.
            activate_in: The delay before the message is delivered.
            activate_at: The time at which the message is delivered; with a time zone.
            timer_id: A name that at most one waiting message of the queue has.
            timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one.

        Returns:
            The id of the row; None if a message with this `timer_id` waits already.

        """
        check_asynchronous(session)
        cmd = OutboxPublishCommand(
            body,
            queue=queue or self.queue,
            session=session,
            headers=self.headers | dict(headers or {}),
            correlation_id=correlation_id,
            reply_to=reply_to or self.reply_to,
            key=key,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )
        self._outer_config.give_correlation_id(cmd)
        row_id: int | None = await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())
        return row_id

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        answer = OutboxPublishCommand.from_cmd(cmd)
        answer.destination = self.queue
        answer.reply_to = answer.reply_to or self.reply_to
        answer.add_headers(self.headers, override=False)
        # The correlation id of the handled message, unless these headers have one.
        answer.correlation_id = answer.headers.get(CORRELATION_ID, answer.correlation_id)
        prepare_answer(answer, self._outer_config)
        await self._basic_publish(answer, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, message: Any = None, /, *, correlation_id: str | None = None) -> NoReturn:
        """Raise: an outbox has no requests."""
        raise NotImplementedError(NO_REQUESTS)
