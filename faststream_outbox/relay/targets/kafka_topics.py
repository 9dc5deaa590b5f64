"""What both clients of Kafka check about topics."""

import re
import time
from typing import Final

from faststream_outbox.relay.targets.base import RefusedError

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Ask for a missing topic again only after this time: each question takes seconds, and many rows may go there.
_MISSING_SECONDS: Final = 5.0


def check_topic(destination: str) -> None:
    """Raise `ValueError` for a name that no topic can have."""
    if not _TOPIC.fullmatch(destination) or destination in (".", ".."):
        raise ValueError(
            f"{destination!r} cannot be a topic: use 1 to 249 letters, digits, dots, underscores and hyphens, "
            "not only '.' or '..'."
        )


class MissingTopics:
    """The topics that Kafka did not have a moment ago."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, topic: str) -> RefusedError:
        """Remember a missing topic, and return the error for its message."""
        self._until[topic] = time.monotonic() + _MISSING_SECONDS
        return _missing(topic)

    def check(self, topic: str) -> None:
        """Raise for a topic that was found missing a moment ago."""
        if time.monotonic() < self._until.get(topic, 0.0):
            raise _missing(topic)


def _missing(topic: str) -> RefusedError:
    return RefusedError(f"There is no topic {topic!r}, and Kafka does not create it by itself: create it.")
