"""The brokers that a relay can send to, each with its own form of a destination and its own confirmations."""

from typing import Any

from faststream_outbox.relay.targets.base import OutageError, RefusedError, Target

__all__ = ["OutageError", "RefusedError", "Target", "make_target"]


def make_target(broker: Any) -> Target:
    """Return the target for a FastStream broker, importing only the client that this broker uses."""
    if isinstance(broker, Target):
        return broker
    for base in type(broker).__mro__:
        match base.__module__.partition(".broker")[0], base.__name__:
            case "faststream.kafka", "KafkaBroker":
                from faststream_outbox.relay.targets.kafka import KafkaTarget  # noqa: PLC0415 - an optional dependency

                return KafkaTarget(broker)
            case "faststream.confluent", "KafkaBroker":
                from faststream_outbox.relay.targets.confluent import ConfluentTarget  # noqa: PLC0415 - same

                return ConfluentTarget(broker)
            case "faststream.rabbit", "RabbitBroker":
                from faststream_outbox.relay.targets.rabbit import RabbitTarget  # noqa: PLC0415 - same

                return RabbitTarget(broker)
            case "faststream.nats", "NatsBroker":
                from faststream_outbox.relay.targets.nats import NatsTarget  # noqa: PLC0415 - same

                return NatsTarget(broker)
            case "faststream.redis", "RedisBroker":
                from faststream_outbox.relay.targets.redis import RedisTarget  # noqa: PLC0415 - same

                return RedisTarget(broker)
    raise TypeError(
        f"A relay sends to a KafkaBroker, RabbitBroker, NatsBroker or RedisBroker, not {type(broker).__name__}."
    )
