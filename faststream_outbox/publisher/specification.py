"""Describes a publisher in the AsyncAPI document."""

from dataclasses import dataclass

from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from faststream_outbox._faststream import PublisherSpecification, PublisherSpecificationConfig
from faststream_outbox.configs import OutboxBrokerConfig


@dataclass(kw_only=True)
class OutboxPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What FastStream documents of every publisher, and the queue."""

    queue: str


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
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.queue,
                description=self.config.description_,
                operation=Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        }
