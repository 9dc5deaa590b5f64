"""Checks of the tables as they are defined: rights, row-level security, drift, storage options, schema version."""

from collections.abc import AsyncIterator, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table

from faststream_outbox._installation import needs_extra
from faststream_outbox.operations.doctor.examination import Examination, FoundTable
from faststream_outbox.operations.doctor.finding import Finding, command, script
from faststream_outbox.storage.postgres.statements.examine.server import (
    FUNCTIONS,
    MISSING_FUNCTIONS,
    MISSING_RIGHTS,
    RIGHTS,
)
from faststream_outbox.storage.postgres.statements.operators import HIDDEN_TABLES
from faststream_outbox.storage.schema.ddl import Fault, absent_table
from faststream_outbox.storage.schema.functions import read_functions
from faststream_outbox.storage.schema.grants import Grant, grant_statements, grants_of, read_all_stats
from faststream_outbox.storage.schema.row_security import RowSecurityError
from faststream_outbox.storage.schema.tables import SCHEMA_VERSION, quoted_name

if TYPE_CHECKING:
    from faststream_outbox.storage.schema.comparison import Findings


async def check_rights(examination: Examination) -> AsyncIterator[Finding]:
    """Name rights that a role of this kind needs and does not have, on tables and on functions of Postgres."""
    grants = grants_of(examination.kind, **examination.tables.as_dict())
    asked = [(number, *each) for number, grant in enumerate(grants) for each in _questions(examination, grant)]
    missing = [grants[number] for [number] in await examination.fetch(MISSING_RIGHTS, **RIGHTS.fill(asked))]
    role = examination.server.role
    if missing:
        missing.sort(key=grants.index)
        listed = "; ".join(
            f"{', '.join(map(str, grants))} on {target}"
            for target, grants in groupby(missing, lambda each: each.target)
        )
        yield Finding(
            "rights",
            "error",
            f"The role {role} lacks rights of {_article(examination.kind)}: {listed}.",
            None,
            "Statements that need these rights fail, and tables that it may not read were not examined.",
            "Let the owner of the tables grant them. If the role is for something else, say so: doctor --as producer, "
            "consumer, operator or viewer.",
            script(*grant_statements(missing, role)),
        )
    if examination.kind != "viewer":
        functions = [name for [name] in await examination.fetch(MISSING_FUNCTIONS, functions=list(FUNCTIONS))]
        if functions:
            yield _missing_functions(functions, role)


def unseen_sessions(role: str) -> Finding:
    """Return what a role does not see that is no member of pg_read_all_stats."""
    return Finding(
        "rights",
        "info",
        f"The role {role} does not see what sessions of other roles do.",
        None,
        "The doctor cannot say since when a transaction is open, and passes over younger ones.",
        "Grant it pg_read_all_stats, or run the doctor as a role that has it.",
        script(read_all_stats(role)),
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "operator" else f"a {kind}"


def _questions(examination: Examination, grant: Grant) -> Iterator[tuple[int, str, str | None]]:
    """Yield what to ask about a right: the object, the right, and a column if it is limited to columns."""
    for found in examination.found.values():
        if grant.table is None and found.table.schema == grant.schema:
            yield found.schema_oid, grant.right, None
            return
        if grant.table is found.table:
            yield from ((found.oid, grant.right, column) for column in grant.columns or (None,))


def _missing_functions(functions: list[str], role: str) -> Finding:
    return Finding(
        "rights",
        "error",
        f"The role {role} may not execute {', '.join(functions)}.",
        None,
        "pg_notify wakes subscribers. Advisory locks order the messages of a key, and show which nodes are alive.",
        "Postgres grants these functions to all roles, and here they were revoked. Grant them again.",
        script(*(f"GRANT EXECUTE ON FUNCTION {each} TO {quoted_name(role)}" for each in functions)),
    )


async def check_row_security(examination: Examination) -> AsyncIterator[Finding]:
    """Name tables whose rows row-level security hides from this role."""
    tables = [found.name for found in examination.found.values() if found.usable]
    for record in await examination.fetch(HIDDEN_TABLES, tables=tables):
        hidden = RowSecurityError(*record)
        yield Finding(
            "row_security",
            "error",
            f"{hidden.table}: {hidden.problem}.",
            None,
            "The role finds no rows there, and Postgres reports no error.",
            "Create policies for the role (or narrower ones), or give it BYPASSRLS.",
            script(*hidden.policies()),
        )


async def check_functions(examination: Examination) -> AsyncIterator[Finding]:
    """Name functions for publishing in SQL that are older than this version, or that this role cannot call."""
    outbox = examination.found.get("outbox")
    if outbox is None or not outbox.usable:
        return  # named by the checks of rights and drift
    found = await examination.run(read_functions, outbox.table)
    if found.outdated:
        yield Finding(
            "functions",
            "warning",
            f"{'; '.join(found.outdated)}.",
            None,
            "Programs in other languages publish through these functions, and may lack what this version has mended.",
            "Run what this command prints. It replaces them, and keeps their grants.",
            commands=(command("schema", "sql", "--functions"),),
        )
    if found.forbidden and examination.kind != "viewer":
        role, listed = examination.server.role, ", ".join(each.signature for each in found.forbidden)
        yield Finding(
            "functions",
            "info",
            f"The role {role} may not execute {listed}.",
            None,
            "It can publish by Python, but not by these functions.",
            "If it has to, let the owner of the functions grant it.",
            script(f"GRANT EXECUTE ON FUNCTION {listed} TO {quoted_name(role)}"),
        )


async def check_dead_letter_table(examination: Examination) -> AsyncIterator[Finding]:
    """Name an outbox without a dead-letter table."""
    if examination.tables.dlq is None:
        yield Finding(
            "dead_letter_table",
            "warning",
            "There is no dead-letter table.",
            None,
            "A message that failed for good is deleted: nobody can read it or send it again.",
            "Define one by make_dlq_table(metadata), migrate, and give it to the broker as dlq_table=….",
        )


async def check_drift(examination: Examination) -> AsyncIterator[Finding]:
    """Name where the live tables differ from the defined ones, with the DDL that mends it."""
    try:
        from faststream_outbox.storage.schema.comparison import compare_tables  # noqa: PLC0415 - Alembic is optional
    except ImportError:
        # Whether a table exists is known without Alembic.
        for name, table in examination.tables.given():
            if name not in examination.found:
                yield _drift(await examination.run(absent_table, table), newer=False)
        yield Finding(
            "drift",
            "info",
            "The tables were not compared with their definitions: Alembic cannot be imported.",
            None,
            "A missing index or column would not be seen.",
            f"{needs_extra('The comparison', 'validate')}.",
        )
        return
    found: Findings = await examination.run(_compare, compare_tables, _comparable(examination))
    if found.newer:
        yield _newer()
    for fault in found.faults:
        if not _is_named_elsewhere(fault):
            yield _drift(fault, newer=found.newer)
    for fault in (*found.autovacuum, *found.fillfactor):
        yield _storage(fault)
    for fault in found.searches:
        yield Finding(
            "drift",
            "info",
            f"{fault.problem}.",
            None,
            "Nothing fails without it, but searches of operators read the whole table.",
            "Create the index.",
            script(*fault.ddl),
        )
    for fault in found.version:
        yield Finding(
            "schema_version",
            "warning",
            f"{fault.problem}.",
            None,
            "Older tables may lack what newer processes need; the recorded version says which upgrade is due.",
            "Migrate the tables. If nothing else is named, only record the version.",
            script(*fault.ddl),
        )


def _compare(connection: Connection, compare: Any, tables: list[Table]) -> "Findings":
    result: Findings = compare(connection, tables)
    return result


def _comparable(examination: Examination) -> list[Table]:
    """Return the tables that are missing, or that this role can name."""
    found = examination.found
    return [table for name, table in examination.tables.given() if name not in found or _usable(found[name])]


def _usable(found: FoundTable) -> bool:
    return found.usable


def _is_named_elsewhere(fault: Fault) -> bool:
    """Return whether another check has this fault; those work without Alembic."""
    return fault.ddl[0].startswith("CREATE POLICY ") or fault.ddl[0].endswith(" CACHE 1")


def _newer() -> Finding:
    return Finding(
        "schema_version",
        "info",
        f"The tables were migrated for a newer version of this package, which knows schema {SCHEMA_VERSION}.",
        None,
        "Both versions work together while an upgrade rolls.",
        "Upgrade this package soon.",
    )


def _drift(fault: Fault, *, newer: bool) -> Finding:
    cure = "Run the DDL, outside a transaction, or let Alembic make the migration."
    if fault.ddl[0].startswith(("CREATE TABLE", "CREATE SCHEMA")):
        cure = f"Is this the right database, and are the names of table and schema right? If they are: {cure}"
    if newer:
        # DDL of an older version could take away what newer processes need.
        cure = "Upgrade this package. Only if no newer process runs, run the DDL, outside a transaction."
    return Finding(
        "drift",
        "error",
        f"{fault.problem}.",
        None,
        "Statements fail, or read the whole table, where the tables are not as defined.",
        cure,
        script(*fault.ddl),
    )


def _storage(fault: Fault) -> Finding:
    return Finding(
        "storage",
        "warning",
        f"{fault.problem}.",
        None,
        "An outbox changes and deletes all its rows: without room in its pages and early vacuums, claims become slow.",
        "Set the options as the table is defined. A new fillfactor holds for new pages.",
        script(*fault.ddl),
    )
