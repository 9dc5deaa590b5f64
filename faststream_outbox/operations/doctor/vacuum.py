"""Checks of what makes claims slow over time: dead rows, updates that touch indexes, and old snapshots."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from faststream_outbox.operations.doctor.examination import Examination, FoundTable
from faststream_outbox.operations.doctor.finding import Finding, literal, script, session_title
from faststream_outbox.storage.postgres.statements.examine.server import (
    COUNTERS,
    IDLE_SLOTS,
    INDEXES_ON,
    SNAPSHOTS,
)
from faststream_outbox.storage.rows import to_datetime

# The columns that every claim or settle changes: with an index on one of them no update is heap-only.
_CHANGING: Final = (
    *("acquired_at", "acquired_token", "lease_expires_at", "attempts_count", "deliveries_count"),
    *("first_attempt_at", "last_attempt_at"),
)
_SLOW: Final = "Claims read past dead rows again and again: they become slower by the minute, and the table grows."


async def check_vacuum(examination: Examination) -> AsyncIterator[Finding]:
    """Name tables with many dead rows, and updates of the outbox that are not heap-only."""
    server, limits = examination.server, examination.limits
    for name, on in (("autovacuum", server.autovacuum), ("track_counts", server.counts)):
        if not on:
            cure = script(f"ALTER SYSTEM SET {name} = on", "SELECT pg_reload_conf()")
            what = f"{name} is off for the whole server."
            yield Finding("vacuum", "error", what, None, _SLOW, "Switch it on.", cure)
    tables = {found.oid: found for found in examination.found.values()}
    for oid, dead, updates, hot, vacuumed, running in await examination.fetch(COUNTERS, oids=list(tables)):
        late = vacuumed is None or server.time - vacuumed > limits.vacuum_seconds
        if dead > limits.dead_rows and late and not running:
            yield _dead_rows(tables[oid], dead, vacuumed)
        outbox = tables[oid].table is examination.tables.outbox
        if outbox and updates >= limits.counted_updates and hot < updates * limits.hot_share:
            yield await _cold_updates(examination, tables[oid], hot / updates)


def _dead_rows(found: FoundTable, dead: int, vacuumed: float | None) -> Finding:
    when = "has never been vacuumed" if vacuumed is None else "has not been vacuumed since then"
    return Finding(
        "vacuum",
        "warning",
        f"{found.name} has {dead:,} dead rows, and {when}.",
        None if vacuumed is None else to_datetime(vacuumed),
        _SLOW,
        "Vacuum it now. If that leaves dead rows, something holds an old snapshot (check snapshot); if autovacuum does "
        "not come by itself, see the check storage.",
        script(f"VACUUM {found.name}"),
    )


async def _cold_updates(examination: Examination, found: FoundTable, share: float) -> Finding:
    indexes = await examination.fetch(INDEXES_ON, oid=found.oid, columns=list(_CHANGING))
    named = [f"{name} on {', '.join(columns)}" for name, columns in indexes]
    cause = f" {', '.join(named)} prevents it." if named else ""
    recount = f"SELECT pg_stat_reset_single_table_counters({found.oid})"
    return Finding(
        "hot_updates",
        "warning",
        f"Only {share:.0%} of the updates of {found.name} are heap-only (HOT).{cause}",
        None,
        "Each claim then writes to every index: more write-ahead log, larger indexes, slower claims.",
        "Drop indexes on columns that claims change."
        if indexes
        else "Lower the fillfactor to 50, and look for an old snapshot, which keeps pages full. Then count anew.",
        script(*(f"DROP INDEX CONCURRENTLY {name}" for name, _ in indexes), recount),
    )


@dataclass(frozen=True, slots=True)
class _Holder:
    """What holds an old snapshot, in the order of the statement `SNAPSHOTS`."""

    kind: str
    name: str
    owner: str
    label: str
    state: str
    since: float | None
    transactions: int

    @property
    def title(self) -> str:
        """Who it is, in a few words."""
        match self.kind:
            case "session":
                return session_title(self.name, self.owner, self.label, self.state)
            case "prepared":
                return f"The prepared transaction {self.name} (role {self.owner})"
            case "slot":
                return f"The replication slot {self.name} ({self.owner}, {self.state})"
            case _:
                return f"The standby {self.label or self.name}, by its feedback,"

    def mend(self) -> tuple[str, str | None]:
        """Return what ends it, and the statement for it."""
        match self.kind:
            case "session":
                cure = (
                    "End the transaction, or its session. Set idle_in_transaction_session_timeout against the next one."
                )
                return cure, script(f"SELECT pg_terminate_backend({self.name})")
            case "prepared":
                cure = "Ask its transaction manager whether to commit it. If nobody knows it any more, roll it back."
                return cure, script(f"ROLLBACK PREPARED {literal(self.name)}")
            case "slot" if self.state == "inactive":
                cure = "If its reader will not return, drop the slot."
                return cure, script(f"SELECT pg_drop_replication_slot({literal(self.name)})")
            case _:
                cure = "End the long query on the standby, or set hot_standby_feedback = off there."
                return cure, None


async def check_snapshot(examination: Examination) -> AsyncIterator[Finding]:
    """Name sessions, prepared transactions, slots and standbys that keep dead rows from being removed."""
    server, limits = examination.server, examination.limits
    for record in await examination.fetch(SNAPSHOTS):
        holder = _Holder(*record)
        if holder.since is None:
            held = holder.transactions > limits.snapshot_transactions
        else:
            held = server.time - holder.since > limits.snapshot_seconds
        if held:
            cure, sql = holder.mend()
            yield Finding(
                "snapshot",
                "warning",
                f"{holder.title} holds a snapshot that is {holder.transactions:,} "
                f"transaction{'' if holder.transactions == 1 else 's'} old.",
                None if holder.since is None else to_datetime(holder.since),
                f"No vacuum can remove rows that were deleted since. {_SLOW}",
                cure,
                sql,
            )


async def check_slots(examination: Examination) -> AsyncIterator[Finding]:
    """Name slots that nobody reads and for which the server keeps much of its write-ahead log."""
    if examination.server.in_recovery:
        return
    for name, kind, size in await examination.fetch(IDLE_SLOTS):
        if size > examination.limits.idle_slot_bytes:
            yield Finding(
                "slots",
                "warning",
                f"The server keeps {size / 2**20:,.0f} MiB of write-ahead log for the {kind} slot {name}, which nobody "
                "reads.",
                None,
                "The disk fills up, and then the server stops.",
                "Start the reader of the slot. If it will not return, drop the slot; max_slot_wal_keep_size limits it.",
                script(f"SELECT pg_drop_replication_slot({literal(name)})"),
            )
