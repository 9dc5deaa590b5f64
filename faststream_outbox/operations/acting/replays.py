"""Replay dead letters: put them back into the outbox, those with a key before what waits of their key."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from faststream_outbox.envelope import CONTENT_TYPE
from faststream_outbox.operations.acts import (
    MOST_SKIPPED,
    SLICE,
    SLICES_PER_SECOND,
    ActOperations,
    ActResult,
    OnProgress,
    Progress,
)
from faststream_outbox.operations.audit import ActAudit
from faststream_outbox.operations.selections import Selected, Selection, selection_of
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.checks import check_count, check_number, encode_headers
from faststream_outbox.storage.errors import sqlstate
from faststream_outbox.storage.operating.acts import WalkPosition
from faststream_outbox.storage.operating.admin import DeadLetterRow
from faststream_outbox.storage.operating.filters import Count
from faststream_outbox.storage.operating.replay import PASSING, SKIPPED_BECAUSE, Replayed, SkipReason

# How long to try again for keys that are in flight: longer than most handlers take.
PATIENCE: Final = 5.0
# A busy key is free for milliseconds between two runs, so try often.
_BETWEEN_TRIES: Final = 0.03
# So many dead letters are put in order at once: those of one key among them go back together.
_WINDOW: Final = 100_000
# Each walk may read again all that failed at the same instant, so there are few.
_WALKED_TOGETHER: Final = 50_000
# The largest number of dead letters of one key that go back in one transaction.
_MOST_OF_KEY: Final = 5_000
# A replay waited for a publisher's timer for too long, or would have waited without end.
_WAITED: Final = ("55P03", "40P01")


@dataclass(slots=True)
class _Tally:
    """What a replay has done so far."""

    total: Count
    progress: OnProgress | None
    rate: float | None
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    skips: int = 0
    skipped: dict[int, str] = field(default_factory=dict)

    def add(self, done: int, skipped: Mapping[int, SkipReason]) -> None:
        self.done, self.skips = self.done + done, self.skips + len(skipped)
        for letter_id, reason in list(skipped.items())[: MOST_SKIPPED - len(self.skipped)]:
            self.skipped[letter_id] = SKIPPED_BECAUSE[reason]
        if self.progress is not None:
            self.progress(Progress(self.done, self.skips, self.total))

    async def keep_rate(self) -> None:
        if self.rate is not None:
            await asyncio.sleep(max(0.0, self.began + self.done / self.rate - time.monotonic()))


class ReplayOperations(ActOperations):
    """Puts dead letters back into the outbox."""

    async def replay(
        self,
        selected: Selected,
        *,
        reason: str,
        by: str | None = None,
        rate: float | None = None,
        patience: float = PATIENCE,
        session: SessionOrConnection | None = None,
        progress: OnProgress | None = None,
    ) -> ActResult:
        """Put dead letters back into the outbox, to be handled again.

        A message goes back under its original id, with no attempts counted, and is due now. One with a key comes before
        all that was published after it for its key; the dead letters of one key go back together, in their order. A
        key that is parked or held stays so behind them.

        While a message of its key is being handled, a dead letter stays where it is, and is tried again for `patience`
        seconds. It is also left out if its id or its timer is taken. `skipped` of the result says why.

        Args:
            selected: A selection of dead letters, an id or several ids.
            reason: Why, for the audit.
            by: Who; by default the user of this process.
            rate: How many messages per second go back at most; by default as many as the database takes.
            patience: For how many seconds to try again for keys that are in flight. Pause the queue if its keys are
                always busy.
            session: The `AsyncSession` or `AsyncConnection` of your transaction, which is READ COMMITTED. Publishers of
                the same keys wait for its end, so commit soon; nothing is tried again. Without one, each 500 rows are
                a transaction.
            progress: A function that is called after each slice.

        Example:
            failed = await operations.select(
                DeadLetterFilter(queue="orders", exception_type="TimeoutError")
            )
            result = await operations.replay(
                failed, reason="the payment provider is back", rate=100
            )
            print(result.done, result.skipped)

        """
        selection = selection_of(selected, "dead_letters")
        check_number("patience", patience)
        if rate is not None:
            check_number("rate", rate, least=0.001)
            if session is not None:
                raise ValueError("rate spreads a replay over many transactions: leave out the session.")
        audit = self._begin_audit("replay", by=by, reason=reason, target=selection.describe())
        size = SLICE if rate is None else min(SLICE, max(1, math.ceil(rate / SLICES_PER_SECOND)))
        tally, after = _Tally(selection.count, progress, rate), None
        try:
            while True:
                groups, after = await self._next_groups(session, selection, after)
                left = await self._replay_groups(session, groups, size, audit, tally)
                tries_end = time.monotonic() + (patience if session is None else 0.0)
                while left and time.monotonic() < tries_end:
                    await asyncio.sleep(_BETWEEN_TRIES)
                    groups = [kept for group in groups if (kept := [each for each in group if each in left])]
                    left = await self._replay_groups(session, groups, size, audit, tally)
                if left:
                    tally.add(0, left)
                if after is None:
                    return ActResult("replay", tally.done, tally.skipped, audit.audit_id)
        finally:
            self._log_act(audit, tally.done)

    async def edit_and_replay(
        self,
        letter_id: int,
        *,
        reason: str,
        body: Any = None,
        headers: Mapping[str, Any] | None = None,
        by: str | None = None,
        patience: float = PATIENCE,
        session: SessionOrConnection | None = None,
    ) -> ActResult:
        """Put one dead letter back into the outbox with another body, or other headers.

        Everything else is as with `replay`. If it is skipped, the dead letter stays as it was.

        Args:
            letter_id: The id of the dead letter.
            reason: Why, for the audit.
            body: The new body; None leaves it. Bytes are stored as they are, a text as UTF-8 if the content type is
                one of text, everything else as JSON. The header `content-type` stays.
            headers: Headers to set, beside those that are there; None as a value removes the header.
            by: Who; by default the user of this process.
            patience: For how many seconds to try again while its key is in flight.
            session: The `AsyncSession` or `AsyncConnection` of your transaction; nothing is tried again then.

        Example:
            await operations.edit_and_replay(
                7, body={"amount": 12}, headers={"fixed": "yes"}, reason="a wrong amount"
            )

        """
        check_count("letter_id", letter_id)
        check_number("patience", patience)
        if body is None and headers is None:
            raise ValueError("edit_and_replay changes the body or the headers: give one of them, or call replay.")
        given = {"body": body, "headers": headers}
        edited = [name for name, value in given.items() if value is not None]
        target = {"kind": "dead_letters", "ids": [letter_id], "edited": edited}
        audit = self._begin_audit("edit_and_replay", by=by, reason=reason, target=target)
        tries_end = time.monotonic() + (patience if session is None else 0.0)

        async def edit_and_replay(on: SessionOrConnection | None) -> Replayed:
            letter = await self._store.run(on, self._store.admin.read_dead_letter, letter_id)
            if letter is None:
                return Replayed(skipped={letter_id: "gone"})
            payload, headers_json = _edited(letter, body, headers)
            replayed = await self._replay_on(on, [letter_id], audit)
            if replayed.back:
                await self._store.run(on, self._store.admin.edit_message, letter.original_id, payload, headers_json)
            return replayed

        while True:
            try:
                replayed = await self._in_transaction(session, edit_and_replay)
            except DBAPIError as error:
                if session is not None or sqlstate(error) not in _WAITED:
                    raise
                replayed = Replayed(skipped={letter_id: "timer_waits"})
            if not replayed.passing or time.monotonic() >= tries_end:
                break
            await asyncio.sleep(_BETWEEN_TRIES)
        audit.committed()
        self._log_act(audit, len(replayed.back))
        skipped = {each: SKIPPED_BECAUSE[why] for each, why in replayed.skipped.items()}
        return ActResult("edit_and_replay", len(replayed.back), skipped, audit.audit_id)

    async def _next_groups(
        self, session: SessionOrConnection | None, selection: Selection, after: WalkPosition | None
    ) -> tuple[list[list[int]], WalkPosition | None]:
        """Return the next dead letters of a selection, those of one key together, and where to go on."""
        groups, count = dict[tuple[str, str] | int, list[int]](), 0
        while count < _WINDOW:
            ids, after = await self._walk_on(session, selection, after)
            found = await self._call(session, self._store.admin.read_letter_keys, ids) if ids else []
            keys = {letter_id: (queue, key) for letter_id, queue, key in found if key is not None}
            for letter_id in ids:
                groups.setdefault(keys.get(letter_id, letter_id), []).append(letter_id)
            count += len(ids)
            if after is None:
                break
        return list(groups.values()), after

    async def _walk_on(
        self, session: SessionOrConnection | None, selection: Selection, after: WalkPosition | None
    ) -> tuple[list[int], WalkPosition | None]:
        if session is not None:
            return await self._next_ids(session, selection, after, _WALKED_TOGETHER)
        async with self._store.transaction() as own:
            await self._store.run(own, self._store.acts.prepare)
            return await self._next_ids(own, selection, after, _WALKED_TOGETHER)

    async def _replay_groups(
        self,
        session: SessionOrConnection | None,
        groups: Iterable[Sequence[int]],
        size: int,
        audit: ActAudit,
        tally: _Tally,
    ) -> dict[int, SkipReason]:
        """Put groups back, slice by slice; return those that can be tried again."""
        left: dict[int, SkipReason] = {}
        for ids in _slices(groups, size):
            replayed = await self._replay_slice(session, ids, audit)
            left |= {each: why for each, why in replayed.skipped.items() if why in PASSING}
            tally.add(len(replayed.back), {each: why for each, why in replayed.skipped.items() if why not in PASSING})
            await tally.keep_rate()
        return left

    async def _replay_slice(self, session: SessionOrConnection | None, ids: Sequence[int], audit: ActAudit) -> Replayed:
        """Put some dead letters back, in one transaction; halve them if one waits for a publisher's timer."""
        try:
            replayed = await self._in_transaction(session, lambda on: self._replay_on(on, ids, audit))
        except DBAPIError as error:
            if session is not None or sqlstate(error) not in _WAITED:
                raise
            audit.written = audit.audit_id  # what was written is rolled back
            if len(ids) == 1:
                return Replayed(skipped={ids[0]: "timer_waits"})
            middle = len(ids) // 2
            first, second = [await self._replay_slice(None, half, audit) for half in (ids[:middle], ids[middle:])]
            return Replayed(first.back + second.back, first.skipped | second.skipped)
        audit.committed()
        return replayed

    async def _replay_on(self, session: SessionOrConnection | None, ids: Sequence[int], audit: ActAudit) -> Replayed:
        replayed = await self._store.run(session, self._store.admin.replay, ids)
        await self._write_audit(session, audit, len(replayed.back))
        return replayed

    async def _in_transaction(
        self, session: SessionOrConnection | None, act: Callable[[SessionOrConnection | None], Awaitable[Replayed]]
    ) -> Replayed:
        if session is not None:
            return await act(session)
        async with self._store.transaction() as own:
            await self._store.run(own, self._store.admin.prepare_replay)
            return await act(own)


def _slices(groups: Iterable[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Join groups to slices of about `size`; a group is cut only if it is very large."""
    ids: list[int] = []
    for group in groups:
        for start in range(0, len(group), _MOST_OF_KEY):
            part = group[start : start + _MOST_OF_KEY]
            if ids and len(ids) + len(part) > size:
                yield ids
                ids = []
            ids += part
    if ids:
        yield ids


def _edited(letter: DeadLetterRow, body: Any, changes: Mapping[str, Any] | None) -> tuple[bytes, str | None]:
    """Return the payload and the headers of a dead letter with these changes."""
    stored = None if letter.headers_json is None else json.loads(letter.headers_json)
    headers = dict(stored) if isinstance(stored, dict) else {}
    headers |= changes or {}
    kept = {name: value for name, value in headers.items() if value is not None or name not in (changes or {})}
    headers_json = letter.headers_json if changes is None else encode_headers(kept)
    if body is None:
        return letter.payload, headers_json
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), headers_json
    if isinstance(body, str) and str(kept.get(CONTENT_TYPE, "")).startswith("text/"):
        return body.encode(), headers_json
    return json.dumps(body, ensure_ascii=False).encode(), headers_json
