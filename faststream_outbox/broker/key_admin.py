"""What an operator does: sees which keys are blocked, and why, and lets them go on."""

from faststream_outbox.broker.publishing import OutboxPublishing
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import (
    KeyAction,
    KeyState,
    KeyStateName,
    ParkKey,
    ReleaseKey,
    RetryKey,
    SkipKey,
)


class KeyAdmin(OutboxPublishing):
    """The verbs for keys. All of them act on the head of a key, its first row, through the caller's transaction.

    None of them waits, and none changes what a handler has in hand: a head whose lease holds is left alone. After the
    commit subscribers are woken, as by a publish.
    """

    async def fetch_keys(
        self,
        *,
        session: SessionOrConnection | None = None,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Tell which keys go no further, and why, by queue and key.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through.
            queue: Of which queue; of all of them by default.
            state: In which state; `"retrying"`, `"delayed"`, `"parked"` and `"expired"` ones by default. Those that are
                being handled (`"in_flight"`) have to be asked for.
            limit: How many at most.

        Example:
            for key in await broker.fetch_keys(session=session, queue="orders"):
                print(key.key, key.state, key.cause, key.waiting)

        """
        return await self.client.store.read_keys(session, queue=queue, state=state, limit=limit)

    async def retry_key(self, *, queue: str, key: str, session: SessionOrConnection | None = None) -> bool:
        """Have the head of a key delivered now, whether it is retrying, delayed or parked.

        A parked one starts from the beginning: no attempts and no deliveries are counted, so the retry strategy gives
        it all its attempts again. False when there is no such key, or its head is being handled.
        """
        return await self._act(RetryKey(), queue=queue, key=key, session=session, wake=True) is not None

    async def skip_key(
        self, *, queue: str, key: str, reason: str, session: SessionOrConnection | None = None
    ) -> int | None:
        """Give the head of a key up, and let the key go on with the message behind it.

        It goes to the dead-letter table as `rejected`, with the reason, and what it was parked for, as its
        `last_exception`. **Without a dead-letter table it is deleted.** Returns the row's id, `original_id` there; None
        when there is no such key, or its head is being handled.
        """
        return await self._act(SkipKey(reason), queue=queue, key=key, session=session, wake=True)

    async def park_key(self, *, queue: str, key: str, reason: str, session: SessionOrConnection | None = None) -> bool:
        """Stop a key at its head, until somebody releases, retries or skips it; what is published for it waits.

        False when there is no such key, when its head is being handled, or when it is parked already.
        """
        return await self._act(ParkKey(reason), queue=queue, key=key, session=session, wake=False) is not None

    async def release_key(self, *, queue: str, key: str, session: SessionOrConnection | None = None) -> bool:
        """Take the parking of a key back: its head is what it was before, and due when it was due, mostly now.

        Its attempts stay counted, so one that was parked because the retry strategy gave up gets one more attempt,
        where `retry_key` gives it all of them. False when there is no such key, or it is not parked.
        """
        return await self._act(ReleaseKey(), queue=queue, key=key, session=session, wake=True) is not None

    async def _act(
        self, action: KeyAction, *, queue: str, key: str, session: SessionOrConnection | None, wake: bool
    ) -> int | None:
        check_name("queue", queue)
        wakeup = self.config.wakeup
        notify = wake and (wakeup is None or not wakeup.defer(session, queue))
        return await self.client.store.act_on_key(session, action, queue=queue, key=key, notify=notify)
