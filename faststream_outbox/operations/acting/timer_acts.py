"""Acts on timers: cancel one, or deliver it now."""

from faststream_outbox.operations.acts import ActOperations
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.operating.filters import MessageFilter


class TimerActOperations(ActOperations):
    """Cancels and fires timers that no process handles."""

    async def cancel_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> bool:
        """Delete a timer; return False if there is none of this name, or it is being handled.

        Args:
            queue: The name of the queue.
            timer_id: The name of the timer.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.cancel_timer("reminders", "invoice-7", reason="paid in cash")

        """
        audit = self._begin_audit("cancel_timer", by=by, reason=reason, target={"queue": queue, "timer_id": timer_id})
        async with self._own_or(session) as used:
            cancelled = await self._store.cancel_timer(used, queue=queue, timer_id=timer_id)
            await self._write_audit(used, audit, int(cancelled))
        self._log_act(audit, int(cancelled))
        return cancelled

    async def fire_timer(
        self,
        queue: str,
        timer_id: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
    ) -> bool:
        """Make a timer due now; return False if none of this name waits for its time.

        Args:
            queue: The name of the queue.
            timer_id: The name of the timer.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; by default one of our own.

        Example:
            await operations.fire_timer(
                "reminders", "invoice-7", reason="the customer asked for it"
            )

        """
        check_name("queue", queue)
        where, acts = MessageFilter(queue=queue, timer_id=check_name("timer_id", timer_id)), self._store.acts
        audit = self._begin_audit("fire_timer", by=by, reason=reason, target={"queue": queue, "timer_id": timer_id})
        async with self._own_or(session) as used:
            upper_id = await self._store.run(used, acts.upper_id, "messages")
            found = await self._store.run(used, acts.walk, "messages", where, upper_id=upper_id, after=None, limit=1)
            acted = await self._store.run(used, acts.deliver_now, found.ids, where)
            await self._write_audit(used, audit, acted.done)
            if acted.done:
                await self._store.run(used, acts.notify, [queue])
        self._log_act(audit, acted.done)
        return acted.done > 0
