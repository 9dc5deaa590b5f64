"""What both clients of Kafka check and ask about topics."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Generic, TypeVar

from faststream_outbox.relay.targets.base import DestinationCheck, NotAllowedError, RefusedError

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Ask for a missing topic again only after this time: each question takes seconds, and many rows may go there.
_MISSING_SECONDS: Final = 5.0
# How many topics to remember before those are forgotten that do not matter any more.
_REMEMBERED: Final = 1_000
# How many partitions to name that lack something.
_NAMED: Final = 3
# How long an answer about a topic serves other messages that go there: thousands may ask at once.
_SHARED_SECONDS: Final = 2.0

# The setting of Kafka's brokers by which they create topics that are asked for.
AUTO_CREATE: Final = "auto.create.topics.enable"

T = TypeVar("T")


def check_topic(destination: str) -> None:
    """Raise `ValueError` for a name that no topic can have."""
    if not _TOPIC.fullmatch(destination) or destination in (".", ".."):
        raise ValueError(
            f"{destination[:100]!r} cannot be a topic: use 1 to 249 letters, digits, dots, underscores and hyphens, "
            "not only '.' or '..'."
        )


class SharedQuestion(Generic[T]):
    """Asks something about a topic once for all messages that ask it at about the same time."""

    def __init__(self, ask: Callable[[str], Awaitable[T]]) -> None:
        self._ask = ask
        # The answer that is there or on its way, and until when it serves others.
        self._answers: dict[str, tuple[asyncio.Future[T], float]] = {}

    async def answer(self, topic: str) -> T:
        """Return the answer about a topic."""
        found = self._answers.get(topic)
        if found is None or (found[0].done() and (time.monotonic() > found[1] or found[0].cancelled())):
            found = asyncio.ensure_future(self._ask(topic)), time.monotonic() + _SHARED_SECONDS
            if len(self._answers) >= _REMEMBERED:  # rows may name any number of topics
                self._answers = {each: known for each, known in self._answers.items() if not known[0].done()}
            self._answers[topic] = found
        return await asyncio.shield(found[0])


class MissingTopicError(RefusedError):
    """Kafka does not have the topic."""


class MissingTopics:
    """The topics that Kafka did not have a moment ago."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, topic: str) -> MissingTopicError:
        """Remember a missing topic, and return the error for its message."""
        now = time.monotonic()
        if len(self._until) >= _REMEMBERED:  # rows may name any number of topics
            self._until = {each: until for each, until in self._until.items() if now < until}
        self._until[topic] = now + _MISSING_SECONDS
        return _missing(topic)

    def check(self, topic: str) -> None:
        """Raise for a topic that was found missing a moment ago."""
        if time.monotonic() < self._until.get(topic, 0.0):
            raise _missing(topic)


def _missing(topic: str) -> MissingTopicError:
    return MissingTopicError(f"There is no topic {topic!r}, and Kafka does not create it by itself: create it.")


def not_allowed(topic: str) -> NotAllowedError:
    """Return the error for a topic that the relay has no right to write to."""
    return NotAllowedError(f"Kafka does not allow the relay to write to topic {topic!r}: grant it the operation Write.")


def topic_there(topic: str) -> DestinationCheck:
    """Return that Kafka has a topic."""
    return DestinationCheck(f"topic {topic!r} exists")


def topic_forbidden(topic: str) -> DestinationCheck:
    """Return that the relay may not see a topic."""
    return DestinationCheck(
        f"Kafka does not let the relay see topic {topic!r}: grant it the operations Describe and Write", found=False
    )


def topic_missing(topic: str, *, creates_topics: bool) -> DestinationCheck:
    """Return that Kafka does not have a topic; `creates_topics` says whether it creates topics by itself."""
    if creates_topics:
        how = f"Kafka creates it with the first message ({AUTO_CREATE}), with its default partitions"
        return DestinationCheck(f"topic {topic!r} is not there yet: {how}")
    command = f"kafka-topics.sh --bootstrap-server … --create --topic {topic} --partitions 3"
    return DestinationCheck(f"there is no topic {topic!r}: create it, for instance by {command}", found=False)


def describe_partitions(partitions: Iterable[tuple[int, int, Collection[int], Collection[int]]]) -> str:
    """Return which partitions lack a leader or replicas; given are number, leader, replicas and those in sync."""
    ills = [
        f"partition {number} has no leader"
        if leader < 0
        else f"{len(in_sync)} of {len(replicas)} replicas of partition {number} are in sync"
        for number, leader, replicas, in_sync in sorted(partitions)
        if leader < 0 or len(in_sync) < len(replicas)
    ]
    return ", ".join(ills[:_NAMED]) + (" …" if len(ills) > _NAMED else "")
