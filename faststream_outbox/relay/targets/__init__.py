"""The brokers that a relay can send to, each with its own form of a destination and its own confirmations."""

from importlib import import_module
from typing import Any, Final

from faststream_outbox.relay.targets.base import OutageError, RefusedError, Target

__all__ = ["OutageError", "RefusedError", "Target", "make_target"]

# FastStream's package and class of a broker, and the class of its target in the module of the same name.
_TARGETS: Final = {
    ("kafka", "KafkaBroker"): "KafkaTarget",
    ("confluent", "KafkaBroker"): "ConfluentTarget",
    ("rabbit", "RabbitBroker"): "RabbitTarget",
    ("nats", "NatsBroker"): "NatsTarget",
    ("redis", "RedisBroker"): "RedisTarget",
}


def make_target(broker: Any) -> Target:
    """Return the target for a FastStream broker, importing only the client that this broker uses."""
    if isinstance(broker, Target):
        return broker
    for base in type(broker).__mro__:
        library, _, path = base.__module__.partition(".")
        package = path.partition(".broker")[0]
        name = _TARGETS.get((package, base.__name__)) if library == "faststream" else None
        if name is not None:
            target: Target = getattr(import_module(f"{__name__}.{package}"), name)(broker)
            return target
    raise TypeError(
        f"A relay sends to a KafkaBroker, RabbitBroker, NatsBroker or RedisBroker, not {type(broker).__name__}."
    )
