"""Acts on messages: deliver them now, discard them, move them to another queue."""

from faststream_outbox.operations.acts import ActOperations, ActResult, OnProgress, act_of
from faststream_outbox.operations.selections import Selected, selection_of
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_name
from faststream_outbox.storage.operating.acts import Keys


class MessageActOperations(ActOperations):
    """Changes messages that no process handles; no act waits for a handler, and each says why it left a message."""

    async def deliver_now(
        self,
        selected: Selected,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
    ) -> ActResult:
        """Make messages due that wait for their time or for a retry.

        A message with a key still waits for the messages before it. Parked messages are skipped: `retry_key` and
        `release_key` are for them.

        Args:
            selected: A selection of messages, an id or several ids.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction. Without one, each 500 rows are a
                transaction.
            progress: A function that is called after each slice.

        Example:
            waiting = await operations.select(MessageFilter(queue="orders", state="retrying"))
            await operations.deliver_now(waiting, reason="the payment provider is back")

        """
        selection = selection_of(selected, "messages")
        audit = self._begin_audit("deliver_now", by=by, reason=reason, target=selection.describe())
        act = act_of(self._store.acts.deliver_now, self._store.run, selection.where)
        return await self._run_act(selection, act, audit, session=session, progress=progress)

    async def discard(
        self,
        selected: Selected,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
    ) -> ActResult:
        """Delete messages for good; they do not become dead letters.

        A message that a process handles is skipped, and so are all messages of a key while one of them is handled. If
        a message with a key is discarded, the next message of the key is delivered.

        Args:
            selected: A selection of messages, an id or several ids.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction. Without one, each 500 rows are a
                transaction.
            progress: A function that is called after each slice.

        Example:
            result = await operations.discard([7, 8], reason="sent twice by the importer")
            print(result.done, result.skipped)

        """
        selection = selection_of(selected, "messages")
        audit = self._begin_audit("discard", by=by, reason=reason, target=selection.describe())
        act = act_of(self._store.acts.discard, self._store.run, selection.where)
        return await self._run_act(selection, act, audit, session=session, progress=progress)

    async def move(
        self,
        selected: Selected,
        queue: str,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
    ) -> ActResult:
        """Move messages to another queue.

        Messages without a key keep their ids. Those of a key get new ones: they go, in their order, behind what waits
        in the other queue with the same key. If a message of a key cannot be moved, those behind it stay too. A timer
        stays if one of the same name waits in the other queue. Parked messages stay parked there.

        Args:
            selected: A selection of messages, an id or several ids.
            queue: The name of the other queue.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, which is READ COMMITTED. Without one,
                each 500 rows are a transaction.
            progress: A function that is called after each slice.

        Example:
            stuck = await operations.select(
                MessageFilter(queue="orders", header=("tenant", "acme"))
            )
            await operations.move(
                stuck, "orders-acme", reason="they get a subscriber of their own"
            )

        """
        check_name("queue", queue)
        selection, left = selection_of(selected, "messages"), Keys()
        target = {**selection.describe(), "to": queue}
        audit = self._begin_audit("move", by=by, reason=reason, target=target)
        act = act_of(self._store.acts.move, self._store.run, selection.where, queue, left)
        return await self._run_act(selection, act, audit, session=session, progress=progress)
