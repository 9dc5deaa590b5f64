"""Acts on keys: retry, skip, park, hold or release one."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from faststream_outbox.operations.acts import ActOperations
from faststream_outbox.operations.audit import ActAudit
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name, check_reason
from faststream_outbox.storage.ordering.states import KeyAction, ParkKey, ReleaseKey, RetryKey, SkipKey

# How long `hold_key` tries to lock a key that an open transaction has published for, and how often.
_PATIENCE: Final = 5.0
_BETWEEN_TRIES: Final = 0.05

_NAMES: Final[Mapping[type[KeyAction], str]] = {
    RetryKey: "retry_key",
    SkipKey: "skip_key",
    ParkKey: "park_key",
    ReleaseKey: "release_key",
}


class KeyBusyError(RuntimeError):
    """A transaction that has published for a key stayed open, so the key could not be held."""

    def __init__(self, queue: str, key: str) -> None:
        super().__init__(
            f"A transaction that has published for the key {key!r} of the queue {queue!r}, or for a key that shares "
            f"its lock, was open for {_PATIENCE:g} seconds: try again when it is committed."
        )


class KeyActOperations(ActOperations):
    """Acts on the head of a key, its first message. No act changes a message that a process handles."""

    async def retry_key(
        self,
        queue: str,
        key: str,
        *,
        reason: str,
        by: str | None = None,
        head: int | None = None,
        session: SessionOrConnection | None = None,
    ) -> bool:
        """Make the head of a key due now, if it is retrying, delayed or parked; a key that is held goes on.

        A parked head starts again: no attempt is counted. Return False if there is no such key, its head is being
        handled, or it is not the `head` that was given.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            head: The id of the message that should be first; if another one is by now, nothing is changed.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.retry_key("orders", "customer-7", reason="the account exists now")

        """
        audit = self._begin_audit("retry_key", by=by, reason=reason, target={"queue": queue, "key": key})
        return await self._act_on_key(RetryKey(), audit, head=head, session=session) is not None

    async def skip_key(
        self,
        queue: str,
        key: str,
        *,
        reason: str,
        by: str | None = None,
        head: int | None = None,
        session: SessionOrConnection | None = None,
    ) -> int | None:
        """Dead-letter the head of a key; the key goes on with the message behind it.

        Without a dead-letter table the head is deleted for good. Return the id of the row; None if there is no such
        key, its head is being handled, or it is not the `head` that was given. A row that only holds the key is
        deleted.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for the audit and the dead letter.
            by: Who; by default the user of this process.
            head: The id of the message that should be first; if another one is by now, nothing is changed.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.skip_key(
                "orders", "customer-7", reason="the order was cancelled by phone"
            )

        """
        audit = self._begin_audit("skip_key", by=by, reason=reason, target={"queue": queue, "key": key})
        return await self._act_on_key(SkipKey(reason), audit, head=head, session=session)

    async def park_key(
        self,
        queue: str,
        key: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> bool:
        """Stop a key at its head until it is released, retried or skipped; later messages of the key wait.

        Return False if there is no such key, its head is being handled, or it is parked already; `hold_key` works
        without a message, too.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for the audit and for those who look at the key later.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.park_key("orders", "customer-7", reason="under investigation")

        """
        audit = self._begin_audit("park_key", by=by, reason=reason, target={"queue": queue, "key": key})
        return await self._act_on_key(ParkKey(reason), audit, session=session, notify=False) is not None

    async def release_key(
        self,
        queue: str,
        key: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> bool:
        """Undo parking and holding: the head is due when it was due before, and its attempts stay counted.

        Return False if there is no such key, or it is neither parked nor held.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.release_key(
                "orders", "customer-7", reason="the investigation is over"
            )

        """
        audit = self._begin_audit("release_key", by=by, reason=reason, target={"queue": queue, "key": key})
        return await self._act_on_key(ReleaseKey(), audit, session=session) is not None

    async def hold_key(
        self,
        queue: str,
        key: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> int | None:
        """Keep messages of a key from being handled, also of a key that has none yet, until it is released.

        The first message of the key is parked. If there is none, or it is being handled, a parked row is inserted that
        is no message: messages that are published later wait behind it; those that wait already go first. It is never
        delivered: `release_key`, `retry_key` and `skip_key` delete it. Return the id of the parked row; None if the key
        is parked already. Raises `KeyBusyError` if a transaction that has published for the key stays open for five
        seconds.

        Do not release such a key with a release of this package before this one: it would deliver the row.

        Args:
            queue: The name of the queue.
            key: The key.
            reason: Why, for the audit and for those who look at the key later.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, which is READ COMMITTED; by default
                one of our own.

        Example:
            await operations.hold_key(
                "orders", "customer-7", reason="its account is being merged"
            )

        """
        check_name("queue", queue)
        check_name("key", key)
        check_reason(reason)
        audit = self._begin_audit("hold_key", by=by, reason=reason, target={"queue": queue, "key": key})
        deadline = time.monotonic() + _PATIENCE
        while True:
            async with self._own_or(session) as used:
                tried, row_id = await self._store.run(used, self._store.acts.hold_key, queue, key, reason)
                await self._write_audit(used, audit, int(row_id is not None))
            if tried:
                self._log_act(audit, int(row_id is not None))
                return row_id
            if time.monotonic() >= deadline:
                raise KeyBusyError(queue, key)
            await asyncio.sleep(_BETWEEN_TRIES)

    async def _act_on_key(
        self,
        action: KeyAction,
        audit: ActAudit,
        *,
        head: int | None = None,
        session: SessionOrConnection | None,
        notify: bool = True,
    ) -> int | None:
        async with self._own_or(session) as used:
            return await self._apply(used, action, audit, head=head, notify=notify)

    async def act_on_key_in(
        self, session: SessionOrConnection | None, action: KeyAction, *, queue: str, key: str, notify: bool
    ) -> int | None:
        """Apply an action to the head of a key through the caller's session: the methods of a broker.

        They take no `by`, and a reason only where the row keeps it; the audit says that the application did it.
        """
        name = _NAMES[type(action)]
        reason = action.reason if isinstance(action, ParkKey | SkipKey) else f"broker.{name}()"
        audit = self._begin_audit(name, by=None, reason=reason, target={"queue": queue, "key": key})
        return await self._apply(session, action, audit, notify=notify)

    async def _apply(
        self,
        session: SessionOrConnection | None,
        action: KeyAction,
        audit: ActAudit,
        *,
        head: int | None = None,
        notify: bool,
    ) -> int | None:
        """Apply an action to the head of a key, and write its audit, in one transaction."""
        of_key = {"queue": audit.target["queue"], "key": audit.target["key"]}
        row_id = await self._store.act_on_key(session, action, **of_key, head=head, notify=notify)
        if isinstance(action, ReleaseKey):
            held = await self._store.run(session, self._store.acts.drop_holds, **of_key)
            row_id = held[0] if row_id is None and held else row_id
        count = int(row_id is not None)
        await self._write_audit(session, audit, count)
        self._log_act(audit, count)
        return row_id
