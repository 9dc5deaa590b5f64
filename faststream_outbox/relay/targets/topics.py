"""What both clients of Kafka need to know of topics."""

import re
import time
from typing import Final

from faststream_outbox.relay.targets.base import RefusedError

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# For so long a topic that is not there is not asked for again: each asking takes seconds, and many rows may go there.
_MISSING_SECONDS: Final = 5.0


def check_topic(name: str) -> None:
    """Refuse what is no topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is no topic: up to 249 letters, digits, dots, underscores and hyphens.")


class MissingTopics:
    """The topics that were not there a moment ago."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def refuse(self, topic: str) -> RefusedError:
        """Take note of a topic that is not there."""
        self._until[topic] = time.monotonic() + _MISSING_SECONDS
        return _there_is_no(topic)

    def check(self, topic: str) -> None:
        """Raise for a topic that was not there."""
        until = self._until.get(topic)
        if until is None:
            return
        if time.monotonic() < until:
            raise _there_is_no(topic)
        del self._until[topic]


def _there_is_no(topic: str) -> RefusedError:
    return RefusedError(f"There is no topic {topic!r}, and the broker makes none by itself: create it.")
