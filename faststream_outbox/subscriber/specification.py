"""A subscriber in the AsyncAPI document."""

from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from faststream_outbox._faststream import SubscriberSpecification
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.subscriber.config import OutboxSubscriberSpecificationConfig


class OutboxSubscriberSpecification(SubscriberSpecification[OutboxBrokerConfig, OutboxSubscriberSpecificationConfig]):
    """One channel per queue."""

    __slots__ = ()

    @property
    def channel_labels(self) -> list[str]:
        """The queues, prefixes included."""
        return [f"{self._outer_config.prefix}{queue}" for queue in self.config.queues]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Describe the channels."""
        payload = resolve_payloads(self.get_payloads())
        queues = self.channel_labels
        keys = [self._channel_key(queue, split=len(queues) > 1) for queue in queues]
        return {
            key: SubscriberSpec(
                address=queue,
                description=self.description,
                operation=Operation(message=Message(title=f"{key}:Message", payload=payload), bindings=None),
                bindings=None,
            )
            for key, queue in zip(keys, queues, strict=True)
        }
