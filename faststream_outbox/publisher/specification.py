"""A publisher in the AsyncAPI document."""

from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from faststream_outbox._faststream import PublisherSpecification
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.publisher.config import OutboxPublisherSpecificationConfig


class OutboxPublisherSpecification(PublisherSpecification[OutboxBrokerConfig, OutboxPublisherSpecificationConfig]):
    """One channel: the queue."""

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
        """Describe the channel."""
        return {
            self.name: PublisherSpec(
                address=self.queue,
                description=self.config.description_,
                operation=Operation(
                    message=Message(
                        title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher")
                    ),
                    bindings=None,
                ),
                bindings=None,
            )
        }
