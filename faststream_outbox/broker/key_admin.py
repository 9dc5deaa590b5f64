"""The key methods of the broker: list blocked keys, and retry, skip, park or release one."""

from faststream_outbox.broker.publishing import OutboxPublishing
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.ordering import KeyAction, KeyState, KeyStateName, ParkKey, ReleaseKey, RetryKey, SkipKey


class KeyAdmin(OutboxPublishing):
    """Acts on the head of a key, its first row, through the caller's transaction.

    No method waits, and none changes a row that a handler works on: a head whose lease holds stays unchanged. After the
    commit subscribers are woken, as by a publish.
    """

    @property
    def operations(self) -> OutboxOperations:
        """Return what an operator can read and do with this outbox; in a test, with its rows in memory."""
        store = self.client.store
        operations = OutboxOperations.on_store(
            store, control_table=store.control_table, audit_table=store.audit_table, nodes_table=store.nodes_table
        )
        operations.monitor = self.config.broker_config.monitor()
        return operations

    async def fetch_keys(
        self,
        *,
        session: SessionOrConnection | None = None,
        queue: str | None = None,
        state: KeyStateName | None = None,
        limit: int = 1000,
    ) -> list[KeyState]:
        """Return the keys that are blocked, and why, sorted by queue and key.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through.
            queue: Keys of this queue only; by default of all queues.
            state: Keys in this state only; by default `"retrying"`, `"delayed"`, `"parked"` and `"expired"`. Keys that
                are being handled are `"in_flight"`.
            limit: The largest number of keys to return.

        Example:
            for key in await broker.fetch_keys(session=session, queue="orders"):
                print(key.key, key.state, key.cause, key.waiting)

        """
        return await self.client.store.read_keys(session, queue=queue, state=state, limit=limit)

    async def retry_key(self, *, queue: str, key: str, session: SessionOrConnection | None = None) -> bool:
        """Make the head of a key due now, if it is retrying, delayed or parked.

        The counts of attempts and deliveries of a parked head start at zero, and the retry strategy allows all attempts
        again. Return False if there is no such key, or its head is being handled.

        Args:
            queue: The name of the queue.
            key: The key.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.

        """
        return await self._act(RetryKey(), queue=queue, key=key, session=session, wake=True) is not None

    async def skip_key(
        self, *, queue: str, key: str, reason: str, session: SessionOrConnection | None = None
    ) -> int | None:
        """Dead-letter the head of a key; the key continues with the message behind it.

        The dead letter is `rejected`, and its `last_exception` holds the reason and why the head was parked. **Without
        a dead-letter table the head is deleted.** Return the id of the row, `original_id` of the dead letter; None if
        there is no such key, or its head is being handled.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for those who look at the dead letter later.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.

        """
        return await self._act(SkipKey(reason), queue=queue, key=key, session=session, wake=True)

    async def park_key(self, *, queue: str, key: str, reason: str, session: SessionOrConnection | None = None) -> bool:
        """Stop a key at its head until it is released, retried or skipped; later messages of the key wait.

        Return False if there is no such key, its head is being handled, or it is parked already.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for those who look at the key later.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.

        """
        return await self._act(ParkKey(reason), queue=queue, key=key, session=session, wake=False) is not None

    async def release_key(self, *, queue: str, key: str, session: SessionOrConnection | None = None) -> bool:
        """Undo the parking of a key: its head is due when it was due before, which is usually now.

        Its attempts stay counted: a head that was parked because the retry strategy gave up gets one more attempt;
        `retry_key` gives it all of them. Return False if there is no such key, or it is not parked.

        Args:
            queue: The name of the queue.
            key: The key.
            session: The `AsyncSession` or `AsyncConnection` of your transaction.

        """
        return await self._act(ReleaseKey(), queue=queue, key=key, session=session, wake=True) is not None

    async def _act(
        self, action: KeyAction, *, queue: str, key: str, session: SessionOrConnection | None, wake: bool
    ) -> int | None:
        check_name("queue", queue)
        wakeup = self.config.wakeup
        notify = wake and (wakeup is None or not wakeup.defer(session, queue))
        return await self.operations.act_on_key_in(session, action, queue=queue, key=key, notify=notify)
