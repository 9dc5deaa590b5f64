"""Visits of the doctor to a backend: what is named, and whether its cure helps."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.operations import Finding, diagnose
from tests.backends import PostgresBackend


async def visit(postgres: PostgresBackend, **options: Any) -> list[Finding]:
    """Return what the doctor finds in the outbox of a backend."""
    tables = {"dlq_table": postgres.dlq_table, "shards_table": postgres.shards_table}
    given: dict[str, Any] = {"outbox_table": postgres.outbox_table, **tables, **options}
    return await diagnose(given.pop("engine", postgres.engine), **given)


async def named(postgres: PostgresBackend, check: str, **options: Any) -> Finding:
    """Return the only thing that the doctor finds; it is of this check."""
    findings = await visit(postgres, **options)
    assert [finding.check for finding in findings] == [check], findings
    return complete(findings[0])


async def find(postgres: PostgresBackend, check: str, **options: Any) -> list[Finding]:
    """Return what the doctor finds of this check, where one fault has several symptoms."""
    return [complete(finding) for finding in await visit(postgres, **options) if finding.check == check]


def complete(finding: Finding) -> Finding:
    """Return a finding that says what is wrong, why that matters, and what mends it."""
    assert finding.what.endswith((".", "…"))
    assert finding.why
    assert finding.cure
    return finding


async def run(engine: AsyncEngine, sql: str | None) -> None:
    """Run the statements of a cure, each outside a transaction, as a person would paste them."""
    assert sql is not None
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in sql.split(";\n"):
            if statement.strip():
                await connection.execute(text(statement.replace(":", "\\:")))


async def cured(postgres: PostgresBackend, finding: Finding, **options: Any) -> bool:
    """Run the cure of a finding; return whether nothing of its check is found any more."""
    await run(postgres.engine, finding.sql)
    return await find(postgres, finding.check, **options) == []
