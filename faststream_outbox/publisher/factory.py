"""Makes publishers, and refuses what cannot be one."""

from collections.abc import Mapping
from typing import Any

from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.publisher.config import OutboxPublisherConfig, OutboxPublisherSpecificationConfig
from faststream_outbox.publisher.specification import OutboxPublisherSpecification
from faststream_outbox.publisher.usecase import OutboxPublisher
from faststream_outbox.storage.checks import check_name, encode_headers


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
    """Make a publisher of one queue."""
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
