"""Dead letters: read them, and send them again or delete them."""

from faststream_outbox.operations.acts import ActOperations, ActResult, OnProgress, act_of
from faststream_outbox.operations.cursors import read_cursor, write_cursor
from faststream_outbox.operations.overviews import DeadLetterGroup
from faststream_outbox.operations.selections import Selected, selection_of
from faststream_outbox.operations.views import DeadLetter, Page
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count
from faststream_outbox.storage.operating.filters import DeadLetterFilter


class DeadLetterOperations(ActOperations):
    """The operations on dead letters."""

    async def dead_letter(self, letter_id: int, *, session: SessionOrConnection | None = None) -> DeadLetter | None:
        """Return one dead letter; None if there is none with this id.

        Args:
            letter_id: Its id in the dead-letter table.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            letter = await operations.dead_letter(7)
            print(letter and letter.exception)

        """
        row = await self._read(session, self._store.admin.read_dead_letter, letter_id)
        return None if row is None else DeadLetter.of(row)

    async def dead_letters(
        self,
        where: DeadLetterFilter | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
        session: SessionOrConnection | None = None,
    ) -> Page[DeadLetter]:
        """Return dead letters, the newest first.

        One call examines at most about 10,000 rows: with a filter that few rows match, a page may be short or empty and
        still have an `after`. `queue` and `correlation_id` have an index.

        Args:
            where: Which ones; by default all.
            after: The `after` of the page before, for the next page.
            limit: The largest number of dead letters in a page.
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            page = await operations.dead_letters(DeadLetterFilter(queue="orders"))
            for letter in page.items:
                print(letter.id, letter.exception_type, letter.body.pretty())

        """
        where = where or DeadLetterFilter()
        check_count("limit", limit)
        position = read_cursor(after, "dead_letters", where)
        found = await self._read(session, self._store.admin.search_dead_letters, where, position, limit)
        letters = [DeadLetter.of(row) for row in found.items]
        return Page(letters, write_cursor(found.position, "dead_letters", where), found.complete)

    async def dead_letter_groups(self, *, session: SessionOrConnection | None = None) -> list[DeadLetterGroup]:
        """Return how many dead letters each queue has, by reason and type of exception, the largest group first.

        Of each queue the newest 10,000 are read; `count` is capped if there are more.

        Args:
            session: The `AsyncSession` or `AsyncConnection` to read through; by default a connection of the engine.

        Example:
            for group in await operations.dead_letter_groups():
                print(group.queue, group.reason, group.exception_type, group.count)

        """
        groups = await self._read(session, self._store.admin.group_dead_letters)
        return [DeadLetterGroup.of(group) for group in groups]

    async def purge(
        self,
        selected: Selected,
        *,
        reason: str,
        by: str | None = None,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
    ) -> ActResult:
        """Delete dead letters for good.

        Args:
            selected: A selection of dead letters, an id or several ids.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            session: The `AsyncSession` or `AsyncConnection` of your transaction. Without one, each 500 rows are a
                transaction.
            progress: A function that is called after each slice.

        Example:
            old = await operations.select(
                DeadLetterFilter(failed_before=datetime.now(UTC) - timedelta(days=30))
            )
            result = await operations.purge(old, reason="kept for 30 days")
            print(result.done)

        """
        selection = selection_of(selected, "dead_letters")
        audit = self._begin_audit("purge", by=by, reason=reason, target=selection.describe())
        act = act_of(self._store.acts.purge, self._store.run, selection.where)
        return await self._run_act(selection, act, audit, session=session, progress=progress)
