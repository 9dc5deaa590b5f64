"""A publisher of one queue: called by the user, or by FastStream with what a handler returned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from faststream.response import PublishCommand

from faststream_outbox._faststream import (
    PublisherMiddleware,
    PublisherSpecification,
    PublisherUsecase,
    PublisherUsecaseConfig,
)
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import CORRELATION_ID
from faststream_outbox.publisher.answers import choose_transaction
from faststream_outbox.publisher.producer import NO_REQUESTS
from faststream_outbox.publisher.specification import OutboxPublisherSpecification, OutboxPublisherSpecificationConfig
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
        *,
        session: AnySession = None,
        queue: str = "",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        key: str | None = None,
        activate_in: timedelta | None = None,
        activate_at: datetime | None = None,
        timer_id: str | None = None,
        timer_conflict: TimerConflict = "ignore",
    ) -> int | None:
        """Insert one message in the caller's transaction, as `OutboxBroker.publish` does."""
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
        row_id: int | None = await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())
        return row_id

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        answer = OutboxPublishCommand.from_cmd(cmd)
        answer.destination = self.queue
        answer.reply_to = answer.reply_to or self.reply_to
        answer.add_headers(self.headers, override=False)
        # The correlation id of the handled message, unless these headers have one.
        answer.correlation_id = answer.headers.get(CORRELATION_ID, answer.correlation_id)
        choose_transaction(answer, self._outer_config)
        await self._basic_publish(answer, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, message: Any = None, /, *, correlation_id: str | None = None) -> NoReturn:
        """Raise: an outbox has no requests."""
        raise NotImplementedError(NO_REQUESTS)


def create_publisher(
    *,
    queue: str,
    headers: Mapping[str, Any] | None,
    reply_to: str,
    config: OutboxBrokerConfig,
    title: str | None,
    description: str | None,
    schema: Any,
    include_in_schema: bool,
) -> OutboxPublisher:
    """Check the options of a publisher, and make it."""
    check_name("queue", queue)
    encode_headers(headers)
    if reply_to:
        check_name("reply_to", reply_to)
    return OutboxPublisher(
        OutboxPublisherConfig(queue=queue, headers=headers, reply_to=reply_to, _outer_config=config),
        OutboxPublisherSpecification(
            config,
            OutboxPublisherSpecificationConfig(
                queue=queue,
                title_=title,
                description_=description,
                schema_=schema,
                include_in_schema=include_in_schema,
            ),
        ),
    )
