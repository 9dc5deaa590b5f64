"""Keys: which of them wait, why, and what is behind them."""

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.operations.cursors import read_cursor, write_cursor
from faststream_outbox.operations.overviews import KeyDetail
from faststream_outbox.operations.views import Message, Page
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count, check_name
from faststream_outbox.storage.operating.filters import Count, MessageFilter
from faststream_outbox.storage.ordering.states import KeyState, KeyStateName, state_of, wanted_states


class KeyOperations(OperationsBase):
    """The operations on keys."""

    async def keys(
        self,
        state: KeyStateName | None = None,
        *,
        queue: str | None = None,
        after: str | None = None,
        limit: int = 100,
        session: SessionOrConnection | None = None,
    ) -> Page[KeyState]:
        """Return the keys that are blocked, and why, by queue and key.

        One call visits at most 2,000 keys: if few of them are blocked, a page may be short or empty and still have an
        `after`. What waits behind a key is counted up to 1,000 messages.

        Args:
            state: Keys in this state only; by default `"retrying"`, `"delayed"`, `"parked"` and `"expired"`. Keys that
                are being handled are `"in_flight"`.
            queue: Keys of this queue only; by default of all queues.
            after: The `after` of the page before, for the next page.
            limit: The largest number of keys in a page.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for key in (await operations.keys("parked", queue="orders")).items:
                print(key.key, key.cause, key.waiting)

        """
        check_count("limit", limit)
        if queue is not None:
            check_name("queue", queue)
        states = wanted_states(state)
        position = read_cursor(after, "keys", queue, state)
        found = await self._read(session, self._store.admin.search_keys, queue, states, position, limit)
        return Page(found.items, write_cursor(found.position, "keys", queue, state), found.complete)

    async def key(
        self, queue: str, key: str, *, limit: int = 10, session: SessionOrConnection | None = None
    ) -> KeyDetail | None:
        """Return one key with its first messages; None if no message has it.

        Args:
            queue: The name of the queue.
            key: The key.
            limit: The largest number of messages; `messages(MessageFilter(queue=…, key=…))` has all of them.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            detail = await operations.key("orders", "customer-7")
            print(detail and (detail.state, detail.waiting))

        """
        check_count("limit", limit)
        where = MessageFilter(queue=queue, key=key)
        found = await self._read(session, self._store.admin.search_messages, where, None, limit)
        if not found.items:
            return None
        rows = await self._read(session, self._store.admin.count_key, queue, key)
        head, now = found.items[0], found.now
        state, behind = state_of(head, now), max(0, rows.number - 1)
        blocked = None
        if state != "ready":
            blocked = KeyState.of(head, waiting=behind, now=now, waiting_capped=rows.capped)
        messages = Message.each(found)
        return KeyDetail(queue, key, state, blocked, Count(behind, rows.capped), messages)
