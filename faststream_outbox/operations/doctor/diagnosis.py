"""Run every check of the doctor, each with a time limit; one that fails is a finding itself."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.operations.doctor.examination import (
    CHECK_SECONDS,
    DoctorLimits,
    Examination,
    Pool,
    Tables,
    private_engine,
)
from faststream_outbox.operations.doctor.finding import Finding, worst_first
from faststream_outbox.operations.doctor.ids import check_ids
from faststream_outbox.operations.doctor.keys import check_keys
from faststream_outbox.operations.doctor.locks import check_locks
from faststream_outbox.operations.doctor.rows import (
    RECOVERY_SECONDS,
    check_backlog,
    check_dead_letters,
    check_handlers,
    check_leases,
    check_pauses,
    check_queues,
)
from faststream_outbox.operations.doctor.server import (
    check_clock,
    check_connections,
    check_pool,
    check_version,
    check_writable,
)
from faststream_outbox.operations.doctor.tables import (
    check_dead_letter_table,
    check_drift,
    check_functions,
    check_rights,
    check_row_security,
    unseen_sessions,
)
from faststream_outbox.operations.doctor.vacuum import check_slots, check_snapshot, check_vacuum
from faststream_outbox.operations.doctor.wakeups import check_notifications, check_pooler
from faststream_outbox.runtime.telemetry import describe
from faststream_outbox.runtime.timeouts import within
from faststream_outbox.storage.errors import LOCK_TIMEOUT, advice, sqlstate, without_values
from faststream_outbox.storage.postgres.drivers import check_engine
from faststream_outbox.storage.schema.grants import RoleKind


@dataclass(frozen=True, slots=True)
class _Check:
    name: str
    find: Callable[[Examination], AsyncIterator[Finding]]
    seconds: float = CHECK_SECONDS


# In the order in which an operator should read findings of one severity: what explains others comes first.
_CHECKS: Final = (
    _Check("version", check_version),
    _Check("writable", check_writable),
    _Check("locks", check_locks),
    _Check("pool", check_pool),
    _Check("connections", check_connections),
    _Check("rights", check_rights),
    _Check("row_security", check_row_security),
    _Check("drift", check_drift, 2 * CHECK_SECONDS),
    _Check("functions", check_functions),
    _Check("dead_letter_table", check_dead_letter_table),
    _Check("ids", check_ids),
    _Check("pooler", check_pooler),
    _Check("notifications", check_notifications),
    _Check("queues", check_queues),
    _Check("backlog", check_backlog),
    _Check("handlers", check_handlers),
    _Check("leases", check_leases, CHECK_SECONDS + RECOVERY_SECONDS),
    _Check("pauses", check_pauses),
    _Check("keys", check_keys),
    _Check("dead_letters", check_dead_letters),
    _Check("snapshot", check_snapshot),
    _Check("vacuum", check_vacuum),
    _Check("slots", check_slots),
    _Check("clock", check_clock),
)


# Errors of checks that an error of another check explains: a table or a column does not exist, or a table is locked.
_EXPLAINED_BY: Final = {"42P01": "drift", "42703": "drift", LOCK_TIMEOUT: "locks"}


async def diagnose(
    engine: AsyncEngine,
    *,
    outbox_table: Table,
    dlq_table: Table | None = None,
    shards_table: Table | None = None,
    control_table: Table | None = None,
    audit_table: Table | None = None,
    nodes_table: Table | None = None,
    inbox_table: Table | None = None,
    kind: RoleKind = "operator",
    limits: DoctorLimits | None = None,
    pool: Pool | None = None,
    clock: Callable[[], float] = time.time,
) -> list[Finding]:
    """Look for everything that is known to go wrong with an outbox; return what was found, worst first.

    Nothing is changed. No check reads more than some thousand rows, and each has a time limit.

    Args:
        engine: The engine; connections are opened as it opens them, outside its pool.
        outbox_table: The table of messages.
        dlq_table: The table of dead letters.
        shards_table: The table of shard leases.
        control_table: The table of pauses.
        audit_table: The table of what operators did.
        nodes_table: The table of processes.
        inbox_table: The table of an inbox.
        kind: What the role of the engine is for; its rights are checked.
        limits: From where on something is named.
        pool: What a broker needs of its engine's pool.
        clock: The clock of this process.

    Example:
        for finding in await diagnose(engine, outbox_table=outbox_table, dlq_table=dlq_table):
            print(finding.what, finding.cure, finding.sql or "")

    """
    check_engine(engine)
    tables = Tables(outbox_table, dlq_table, shards_table, control_table, audit_table, nodes_table, inbox_table)
    own = private_engine(engine)
    examination = Examination(own, tables, kind, limits or DoctorLimits(), clock, pool)
    try:
        try:
            await within(CHECK_SECONDS, examination.begin())
        except Exception as error:  # noqa: BLE001 - any failure is the finding
            return [_unreachable(error)]
        findings, causes = list[Finding](), dict[Finding, str | None]()
        for check in _CHECKS:
            if (failure := await _run(check, examination, findings)) is not None:
                findings.append(failed := _failed(check, failure))
                causes[failed] = _EXPLAINED_BY.get(sqlstate(failure))
    finally:
        await own.dispose()
    named = {finding.check for finding in findings if finding.severity == "error"}
    findings = [finding for finding in findings if causes.get(finding) not in named]
    # Alone it is no fault: no kind of role needs that right for its work.
    if not examination.server.sees_sessions and any(finding.severity != "info" for finding in findings):
        findings.append(unseen_sessions(examination.server.role))
    return worst_first(findings)


async def _run(check: _Check, examination: Examination, findings: list[Finding]) -> Exception | None:
    """Add what a check finds, also before it fails; return why it failed."""

    async def collect() -> None:
        async for finding in check.find(examination):
            findings.append(finding)  # noqa: PERF401 - what was found before a failure counts too

    try:
        await within(check.seconds, collect())
    except Exception as error:  # noqa: BLE001 - any failure is a finding
        return error
    return None


def _failed(check: _Check, error: Exception) -> Finding:
    cure = advice(error).strip() or "Run the doctor again, with a role that may read the tables."
    if sqlstate(error) == LOCK_TIMEOUT:
        # The check of locks has found nobody.
        cure = "A table was locked when this check read it, and was not before: run the doctor again."
    return Finding(
        check.name,
        "warning",
        f"The check {check.name} failed: {_cause(error)}.",
        None,
        "What it looks for may be wrong.",
        cure,
    )


def _cause(error: Exception) -> str:
    """Return the sentence of the server, the driver or the system, and of any other error what it is."""
    original = getattr(error, "orig", None) or error
    if original is error and not isinstance(error, OSError) and not sqlstate(error):
        return describe(error)
    return str(without_values(original)).strip().partition("\n")[0].rstrip(".") or type(original).__name__


def _unreachable(error: Exception) -> Finding:
    cure = advice(error).strip()
    if "URL" not in cure:
        cure = f"{cure} Check the engine's URL, the network between this machine and the server, and its log.".lstrip()
    return Finding(
        "reachable",
        "error",
        f"The database cannot be reached: {_cause(error)}.",
        None,
        "Nothing can be published, claimed or settled by this process.",
        f"{cure} On the command line this URL is --dsn (OUTBOX_DSN).",
    )
