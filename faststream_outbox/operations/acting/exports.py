"""Export dead letters as JSON lines, with nothing lost."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from faststream_outbox.operations.acts import ActOperations
from faststream_outbox.operations.selections import Selected, selection_of
from faststream_outbox.storage import SessionOrConnection
from faststream_outbox.storage.operating.admin import DeadLetterRow
from faststream_outbox.storage.rows import to_datetime

# How many dead letters are read at once: payloads may be large.
_READ: Final = 100


class ExportOperations(ActOperations):
    """Reads dead letters for other programs."""

    async def export(
        self, selected: Selected, *, session: SessionOrConnection | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        r"""Yield dead letters, each as a dict that JSON can hold; nothing is changed or locked.

        The names are the columns of the dead-letter table. Times are ISO 8601 in UTC. `headers` is the object as it
        was published. The payload is `payload_text` if it is UTF-8, and `payload_base64` otherwise.

        Args:
            selected: A selection of dead letters, an id or several ids.
            session: The `AsyncSession` or `AsyncConnection` to read through. Without one, each 100 letters or 8 MB are
                read in a transaction of their own, so an export may take as long as its reader likes.

        Example:
            async for letter in operations.export(
                await operations.select(DeadLetterFilter(queue="orders"))
            ):
                file.write(json.dumps(letter, ensure_ascii=False) + "\n")

        """
        selection, after = selection_of(selected, "dead_letters"), None
        while True:
            async with self._own_or(session) as used:
                ids, after = await self._next_ids(used, selection, after, _READ)
            while ids:
                async with self._own_or(session) as used:
                    rows, ids = await self._store.run(used, self._read_some, ids)
                for row in rows:
                    yield exported(row)
            if after is None:
                return

    def _read_some(self, session: Any, ids: list[int]) -> tuple[list[DeadLetterRow], list[int]]:
        """Read the first of these dead letters, and return the ids of the rest."""
        count = self._store.admin.count_fitting(session, "dead_letters", ids)
        return self._store.acts.read_dead_letters(session, ids[:count]), ids[count:]


def exported(row: DeadLetterRow) -> dict[str, Any]:
    """Return a dead letter as a dict that JSON can hold."""
    try:
        payload = {"payload_text": row.payload.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(row.payload).decode()}
    return {
        "id": row.id,
        "original_id": row.original_id,
        "queue": row.queue,
        "entity_key": row.entity_key,
        **payload,
        "headers": None if row.headers_json is None else json.loads(row.headers_json),
        "timer_id": row.timer_id,
        "attempts_count": row.attempts_count,
        "deliveries_count": row.deliveries_count,
        "created_at": _time(row.created_epoch),
        "first_attempt_at": _time(row.first_attempt_epoch),
        "last_attempt_at": _time(row.last_attempt_epoch),
        "failed_at": _time(row.failed_epoch),
        "failure_reason": row.failure_reason,
        "last_exception": row.last_exception,
    }


def _time(epoch: float | None) -> str | None:
    return None if epoch is None else to_datetime(epoch).isoformat()
