"""One partition of a topic: batches of whole messages, one behind the other, each taken whole or not at all."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import LeaseLostError, RefusedError, SentRun, StillOurs

if TYPE_CHECKING:
    from faststream_outbox.relay.targets.kafka_producer import Batch, BatchProducer

# A topic may take smaller batches than its brokers do; then they are halved, down to this.
_FEWEST_BYTES: Final = 1024


class Parcel:
    """Messages that go together, in their order."""

    def __init__(self, messages: Sequence[Outgoing], still_ours: StillOurs) -> None:
        self.messages = messages
        self.still_ours = still_ours
        self.confirmed = 0
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether all are confirmed, or one has failed."""
        return self.error is not None or self.confirmed == len(self.messages)

    @property
    def left(self) -> Sequence[Outgoing]:
        """The messages that are not confirmed."""
        return self.messages[self.confirmed :]


class Lane:
    """Whoever waits for its turn finds that another has taken its messages along, or takes those of all who wait."""

    def __init__(self, producer: "BatchProducer", topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._turn = asyncio.Lock()
        self._waiting: deque[Parcel] = deque()
        self._most_bytes = producer.max_batch_bytes

    async def send(self, messages: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        """Send messages in their order; those behind one that fails are not sent."""
        parcel = Parcel(messages, still_ours)
        self._waiting.append(parcel)
        try:
            async with self._turn:
                while not parcel.done:
                    await self._send_batch()
        finally:
            if parcel in self._waiting:
                self._waiting.remove(parcel)
        return SentRun(parcel.confirmed, parcel.error)

    async def _send_batch(self) -> None:
        """Send as much of what waits as one batch holds."""
        try:
            batch = self._producer.new_batch()
        except Exception as error:  # noqa: BLE001 - whoever sent them decides
            self._fail(self._waiting, error)
            return
        counts = self._fill(batch)
        if not counts:
            return
        try:
            await self._producer.send(batch, self._topic, self._partition)
        except RefusedError as refusal:
            if batch.count == 1:
                self._fail(counts, refusal)
            else:
                await self._send_apart(counts, batch.size)
        except Exception as error:  # noqa: BLE001 - same
            self._fail(counts, error)
        else:
            for parcel, count in counts.items():
                parcel.confirmed += count
        self._sweep()

    async def _send_apart(self, counts: Mapping[Parcel, int], size: int) -> None:
        """Find out which message of a batch is refused: the others are innocent, and each is sent alone."""
        self._most_bytes = max(size // 2, _FEWEST_BYTES)
        for parcel, count in counts.items():
            for message in parcel.left[:count]:
                try:
                    batch = self._producer.new_batch()
                    batch.add(message)
                    await self._producer.send(batch, self._topic, self._partition)
                except Exception as error:  # noqa: BLE001 - whoever sent it decides
                    parcel.error = error
                    break
                parcel.confirmed += 1

    def _fill(self, batch: "Batch") -> dict[Parcel, int]:
        """Put messages into a batch while there is room; tells how many of each parcel."""
        counts: dict[Parcel, int] = {}
        for parcel in self._waiting:
            if not parcel.still_ours():
                parcel.error = LeaseLostError("The lease was lost before it was sent.")
                continue
            for message in parcel.left:
                if (counts and batch.size >= self._most_bytes) or not batch.add(message):
                    self._sweep()
                    return counts
                counts[parcel] = counts.get(parcel, 0) + 1
        self._sweep()
        return counts

    def _fail(self, parcels: Iterable[Parcel], error: Exception) -> None:
        for parcel in parcels:
            parcel.error = error
        self._sweep()

    def _sweep(self) -> None:
        self._waiting = deque(parcel for parcel in self._waiting if not parcel.done)
