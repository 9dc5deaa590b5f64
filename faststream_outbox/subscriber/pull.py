"""Messages taken one by one, by a caller who settles them."""

from collections.abc import Callable, Sequence
from functools import partial

from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.engine.pull import Puller
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import Lease, Retry, Store
from faststream_outbox.subscriber.judge import Judge
from faststream_outbox.wakeup.wakeup import Announce


class Pulling:
    """Hands out deliveries whose verdict is written when it is given."""

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        *,
        options: SubscriberOptions,
        judge: Judge,
        monitor: Monitor,
        announce: Announce | None,
    ) -> None:
        self._judge = judge
        self._puller = Puller(
            store,
            queues,
            lease_seconds=options.lease_ttl_seconds,
            min_interval=options.min_fetch_interval,
            max_interval=options.max_fetch_interval,
            max_deliveries=options.max_deliveries,
            on_dead=options.on_dead,
            ordering=options.ordering,
            monitor=monitor,
            announce=announce,
        )

    @property
    def wake(self) -> Callable[[], None]:
        """Say that rows may have come."""
        return self._puller.wake

    async def take(self, timeout: float | None) -> OutboxDelivery | None:  # noqa: ASYNC109 - as FastStream's get_one has it
        """Wait for a row; None when none came in time, or the subscriber was stopped."""
        held = await self._puller.pull(timeout)
        if held is None:
            return None
        delivery = OutboxDelivery.of(held)
        delivery.settle = partial(self._settle, held.lease)
        return delivery

    async def give_back(self, delivery: OutboxDelivery) -> None:
        """Let others have a row of which nothing was said; it has not failed, so no attempt is counted."""
        if delivery.verdict is None:
            await self._puller.settle(delivery.lease, Retry(0.0, delivery.attempts_count))

    async def fail(self, delivery: OutboxDelivery, error: Exception) -> None:
        """Let the retry strategy decide over a row that cannot even be read."""
        await self._puller.settle(delivery.lease, self._judge.outcome(delivery, error))

    async def stop(self) -> None:
        """Give back what is still in somebody's hands."""
        await self._puller.stop()

    async def _settle(self, lease: Lease, delivery: OutboxDelivery) -> None:
        await self._puller.settle(lease, self._judge.outcome(delivery, None))
