"""Replay dead letters on Postgres: two statements in the caller's transaction."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sqlalchemy import Table

from faststream_outbox.storage.operating.replay import Replayed
from faststream_outbox.storage.postgres.drivers import Records
from faststream_outbox.storage.postgres.statements.replay import ReplayStatements
from faststream_outbox.storage.postgres.statements.statement import Statement


class _Execute(Protocol):
    def __call__(self, session: Any, statement: Statement, /, **values: Any) -> Records: ...


class PostgresReplay:
    """Puts dead letters back into one outbox."""

    def __init__(self, execute: _Execute, outbox: Table, dlq: Table) -> None:
        self._execute = execute
        self.statements = ReplayStatements(outbox, dlq)

    def replay(self, session: Any, letter_ids: Iterable[int]) -> Replayed:
        """Put dead letters back; publishers of their keys wait until this transaction ends."""
        ids = sorted(set(letter_ids))
        [[isolation, found, busy]] = self._execute(session, self.statements.lock, ids=ids)
        if isolation != "read committed":
            raise ValueError(
                f"Dead letters are replayed in a transaction that is READ COMMITTED, and this one is "
                f"{isolation.upper()}: its snapshot may be older than the locks that keep the order of keys."
            )
        present, publishing = set(found or ()), set(busy or ())
        result = Replayed(skipped={each: "gone" for each in ids if each not in present})
        result.skipped.update(dict.fromkeys(sorted(publishing), "publishing"))
        free = sorted(present - publishing)
        if not free:
            return result
        [[back, skipped, reasons, _]] = self._execute(session, self.statements.replay, ids=free)
        result.back = back or []
        result.skipped.update(zip(skipped or (), reasons or (), strict=True))
        missed = set(free).difference(result.back, result.skipped)
        result.skipped.update(dict.fromkeys(sorted(missed), "locked"))
        return result

    def read_keys(self, session: Any, letter_ids: Sequence[int]) -> list[tuple[int, str, str | None]]:
        """Return the id, the queue and the key of each of these dead letters that is there."""
        records = self._execute(session, self.statements.keys, ids=sorted(letter_ids))
        return sorted((letter_id, queue, key) for letter_id, queue, key in records)

    def edit(self, session: Any, message_id: int, payload: bytes, headers_json: str | None) -> None:
        """Replace the payload and the headers of a message."""
        values = {"id": message_id, "payload": payload, "headers": headers_json}
        self._execute(session, self.statements.edit, **values)
