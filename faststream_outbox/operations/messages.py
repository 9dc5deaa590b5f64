"""Messages that wait in the outbox: read them, and change what becomes of them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.operations.cursors import read_cursor, write_cursor
from faststream_outbox.operations.overviews import Found
from faststream_outbox.operations.tail import Tail
from faststream_outbox.operations.views import DeadLetter, Message, Page
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count, check_name
from faststream_outbox.storage.nodes import NO_NODE
from faststream_outbox.storage.operating.filters import DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.reads import Search
from faststream_outbox.storage.ordering.states import KeyState, state_of
from faststream_outbox.storage.rows import OutboxRow


class MessageOperations(OperationsBase):
    """The operations on messages."""

    async def message(self, message_id: int, *, session: SessionOrConnection | None = None) -> Message | None:
        """Return one message, whatever its state; None if it is not in the outbox (any more).

        Args:
            message_id: The id of its row, as `broker.publish()` returned it.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            message = await operations.message(7)
            print(message and message.body.pretty())

        """
        found = Message.each(await self._read(session, self._store.admin.read_messages, [message_id]))
        if not found:
            return None
        [message] = found
        if message.blocked_by is not None:
            heads = await self._read(session, self._store.admin.read_messages, [message.blocked_by])
            message = replace(message, blocked_because=_why_blocked(heads))
        if message.holder is None or message.holder == NO_NODE:
            return message
        holder = await self._read(session, self._store.admin.find_node, message.holder)
        return replace(message, holder_process=holder.process, holder_alive=holder.alive)

    async def messages(
        self,
        where: MessageFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        session: SessionOrConnection | None = None,
    ) -> Page[Message]:
        """Return messages of the outbox, whatever their state.

        The order is that of the index which finds them. Without a filter: by id. With `queue`, `state` or `node`: by
        queue, and in each queue first messages without a key by when they are due, then the others by key and id. With
        `key`: the messages of the key in their order. With `timer_id`: by queue.

        One call examines at most about 10,000 rows: with a filter that few rows match (a correlation id, a header, a
        time), a page may be short or empty and still have an `after`. Nor does it read more than 8 MB, and one message.

        Args:
            where: Which ones; by default all.
            after: The `after` of the page before, for the next page.
            limit: The largest number of messages in a page.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            page = await operations.messages(MessageFilter(queue="orders", state="retrying"))
            for message in page.items:
                print(message.id, message.attempts, message.last_failure)

        """
        return await self._page(where, after, limit, session, timers=False)

    async def timers(
        self,
        where: MessageFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        session: SessionOrConnection | None = None,
    ) -> Page[Message]:
        """Return the timers: messages that were published with a `timer_id`, by queue and timer.

        Args:
            where: Which ones; by default all.
            after: The `after` of the page before, for the next page.
            limit: The largest number of messages in a page.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for timer in (await operations.timers(MessageFilter(queue="reminders"))).items:
                print(timer.timer_id, timer.due_at)

        """
        return await self._page(where, after, limit, session, timers=True)

    async def _page(
        self,
        where: MessageFilter | None,
        after: str | None,
        limit: int,
        session: SessionOrConnection | None,
        *,
        timers: bool,
    ) -> Page[Message]:
        where = where or MessageFilter()
        check_count("limit", limit)
        position = read_cursor(after, "messages", timers, where)
        found = await self._read(session, self._store.admin.search_messages, where, position, limit, timers=timers)
        return Page(Message.each(found), write_cursor(found.position, "messages", timers, where), found.complete)

    async def find(self, *, correlation_id: str, limit: int = 100, session: SessionOrConnection | None = None) -> Found:
        """Return the messages and the dead letters with a correlation id.

        The outbox has no index of correlation ids: its 10,000 oldest and its 10,000 newest messages are searched.

        Args:
            correlation_id: The correlation id.
            limit: The largest number of messages, and of dead letters.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            found = await operations.find(correlation_id="c-1")
            print(found.messages, found.dead_letters, found.complete)

        """
        where = DeadLetterFilter(correlation_id=check_name("correlation_id", correlation_id))
        check_count("limit", limit)
        waiting = await self._read(session, self._store.admin.find_messages, correlation_id, limit)
        dead = await self._read(session, self._store.admin.search_dead_letters, where, None, limit)
        return Found(
            Message.each(waiting),
            [DeadLetter.of(row) for row in dead.items],
            waiting.complete and dead.complete and dead.position is None,
        )

    def tail(self, queue: str | None = None, *, interval: float = 1.0) -> AsyncIterator[Message]:
        """Return new messages as they appear, without an end.

        The outbox is looked at once in `interval`: a message that is published and handled between two looks is not
        seen. A transaction may commit after another one that has drawn higher ids; its messages are seen if it commits
        within ten seconds.

        Args:
            queue: Messages of this queue only; by default of all queues.
            interval: The seconds between two looks.

        Example:
            async for message in operations.tail("orders"):
                print(message.id, message.body.pretty())

        """
        if queue is not None:
            check_name("queue", queue)
        return aiter(Tail(partial(self._read, None), self._store.admin, queue=queue, interval=interval))


def _why_blocked(heads: Search[OutboxRow]) -> str | None:
    """Return the state of the head and its cause; None if it is ready by now, or gone."""
    for head in heads.items:
        if state_of(head, heads.now) != "ready":
            key = KeyState.of(head, waiting=0, now=heads.now)
            return f"{key.state.replace('_', ' ')}: {key.cause}"
    return None
