"""`faststream-outbox schema`: the tables as SQL or as a migration, and the check of live tables."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from sqlalchemy import Table

from faststream_outbox._installation import needs_extra
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.arguments import RoleKind
from faststream_outbox.cli.operating.command import PANELS, Config, Run, operator_command
from faststream_outbox.cli.operating.outbox import define_tables
from faststream_outbox.cli.operating.settings import OperatorSettings
from faststream_outbox.cli.operating.values import as_json
from faststream_outbox.cli.operating.views import View
from faststream_outbox.cli.options import with_settings
from faststream_outbox.operations import grants_sql
from faststream_outbox.storage.postgres.functions import drop_functions_ddl, publish_functions_ddl
from faststream_outbox.storage.schema.ddl import Fault, quoted
from faststream_outbox.storage.schema.functions import USUAL_SCHEMA, read_functions
from faststream_outbox.storage.schema.upgrades import create_statements, upgrade_statements

group = typer.Typer(
    help="The tables: as SQL, as a migration, compared with the database, and who may use them.", no_args_is_help=True
)


class Kind(StrEnum):
    """A kind of table."""

    OUTBOX = "outbox"
    DLQ = "dlq"
    CONTROL = "control"
    AUDIT = "audit"
    NODES = "nodes"
    SHARDS = "shards"
    INBOX = "inbox"


_USUAL: Final = (Kind.OUTBOX, Kind.DLQ, Kind.CONTROL, Kind.AUDIT, Kind.NODES)
Kinds = Annotated[
    list[Kind] | None,
    typer.Argument(help="Which tables; by default outbox, dlq, control, audit and nodes, or those of --app."),
]


def _schema_number(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(
            f"--from: {text!r} is not the number of a schema, which is no version of the package: write a whole "
            "number, such as 1; `schema check` names the one that older tables record."
        )
    return int(text)


From = Annotated[
    int | None,
    typer.Option(
        "--from",
        help="Only what tables of this schema need; its number is named by `schema check`, 0 if they record none.",
        parser=_schema_number,
        metavar="NUMBER",
    ),
]
Functions = Annotated[
    bool, typer.Option("--functions", help="In place of the tables, the functions that publish from other languages.")
]
FunctionsSchema = Annotated[
    str, typer.Option("--functions-schema", help="The schema in which the outbox is, if --schema does not name it.")
]


@group.command("sql")
@with_settings(OperatorSettings, PANELS)
def sql(
    kinds: Kinds = None,
    *,
    from_version: From = None,
    functions: Functions = False,
    functions_schema: FunctionsSchema = USUAL_SCHEMA,
    config: Config = None,
    **options: Any,
) -> None:
    """Print the DDL of the tables, or of functions; it needs no connection, and is the same every time."""
    tables = _choose(OperatorSettings.load(options, config), kinds)
    if functions:
        statements: Iterable[str] = publish_functions_ddl(_outbox_of(tables), schema=functions_schema)
    else:
        statements = _statements(tables, from_version)
    typer.echo("".join(f"{each};\n" for each in statements), nl=False)


@group.command("alembic")
@with_settings(OperatorSettings, PANELS)
def alembic(
    kinds: Kinds = None,
    *,
    from_version: From = None,
    revision: Annotated[str | None, typer.Option(help="The id of the revision; by default made of the DDL.")] = None,
    down_revision: Annotated[str | None, typer.Option(help="The id of the revision before it.")] = None,
    functions: Functions = False,
    functions_schema: FunctionsSchema = USUAL_SCHEMA,
    config: Config = None,
    **options: Any,
) -> None:
    """Print a migration of Alembic that creates the tables, to be saved into the folder of your migrations."""
    tables = _choose(OperatorSettings.load(options, config), kinds)
    if functions:
        outbox = _outbox_of(tables)
        statements = publish_functions_ddl(outbox, schema=functions_schema)
        drops = drop_functions_ddl(outbox, schema=functions_schema)
        head = f"Create the functions that publish to {outbox}."
    else:
        statements = list(_statements(tables, from_version))
        # An upgrade removes nothing, so going back leaves the tables as they are.
        dropped = reversed(list(tables.values())) if from_version is None else ()
        drops = [f"DROP TABLE {quoted(each.name, each.schema)}" for each in dropped]
        what = "Create" if from_version is None else f"Upgrade from schema {from_version}"
        head = f"{what}: {', '.join(map(str, tables.values()))}."
    revision = revision or hashlib.sha256("\n".join(statements).encode()).hexdigest()[:12]
    typer.echo(
        _MIGRATION.format(
            head=head,
            revision=revision,
            down_revision=down_revision,
            revises=down_revision or "",
            upgrade=_python(statements),
            downgrade=_python(drops),
        ),
        nl=False,
    )


_MIGRATION: Final = '''"""{head}

Revision ID: {revision}
Revises: {revises}
"""

from alembic import op

revision = {revision!r}
down_revision = {down_revision!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
{upgrade}


def downgrade() -> None:
{downgrade}
'''


def _python(statements: Iterable[str]) -> str:
    lines = list[str]()
    for each in statements:
        # Alembic takes a colon before a word for a parameter.
        text = re.sub(r"(?<!:):(?=\w)", r"\:", each)
        quotes = '"""' if "\\" not in text and '"' not in text else ""
        written = f"{quotes}{text}{quotes}" if quotes else repr(text)
        if "CONCURRENTLY" in each:
            lines += ["    with op.get_context().autocommit_block():", f"        op.execute({written})"]
        else:
            lines.append(f"    op.execute({written})")
    return "\n".join(lines) or "    pass"


@group.command("grants")
@with_settings(OperatorSettings, PANELS)
def grants(
    kinds: Kinds = None,
    *,
    role: Annotated[str, typer.Option(help="The name of the role, as it is, without quotes.")],
    role_kind: Annotated[RoleKind, typer.Option("--as", help="What the role is for.")],
    functions: Annotated[
        bool, typer.Option("--functions", help="Also to call the functions that publish, which have to exist.")
    ] = False,
    functions_schema: FunctionsSchema = USUAL_SCHEMA,
    config: Config = None,
    **options: Any,
) -> None:
    """Print the GRANT statements that give a role what it needs, and no more; it needs no connection."""
    tables = _choose(OperatorSettings.load(options, config), kinds)
    _outbox_of(tables, "Every role needs rights on the outbox: name it too.")
    try:
        printed = grants_sql(
            role,
            role_kind.value,
            **{f"{kind}_table": table for kind, table in tables.items()},
            functions_schema=functions_schema if functions else None,
        )
    except ValueError as error:
        raise UsageError(f"--role: {error}") from error
    typer.echo(printed, nl=False)


def _choose(settings: OperatorSettings, kinds: list[Kind] | None) -> Mapping[str, Table]:
    defined = define_tables(settings).given()
    if not kinds:
        return {kind: table for kind, table in defined.items() if settings.app is not None or Kind(kind) in _USUAL}
    for kind in kinds:
        if kind not in defined:
            raise UsageError(f"{kind}: the broker of --app has no such table.")
    return {kind: defined[kind] for kind in Kind if kind in kinds}


def _outbox_of(tables: Mapping[str, Table], otherwise: str = "--functions are those of the outbox: name it.") -> Table:
    if Kind.OUTBOX not in tables:
        raise UsageError(otherwise)
    return tables[Kind.OUTBOX]


def _statements(tables: Mapping[str, Table], version: int | None) -> Iterable[str]:
    if version is None:
        return create_statements(tables)
    try:
        return list(upgrade_statements(tables, version))
    except ValueError as error:
        raise UsageError(f"--from: {error}") from error


@dataclass
class _Faults(View):
    """What live tables lack, with the DDL that mends it."""

    faults: list[Any]

    def as_json(self) -> Any:
        return as_json(self.faults)

    def json_lines(self) -> Iterable[Any]:
        return map(as_json, self.faults)

    def as_text(self) -> str:
        return "\n".join(map(str, self.faults)) or "The tables have what this version needs."

    def as_rich(self) -> Any:
        from rich.text import Text  # noqa: PLC0415 - not needed in a pipe

        return Text(self.as_text())


@operator_command(group, "check")
async def check(run: Run) -> View:
    """Compare the live tables with what this version needs; print the DDL that mends them.

    Where there is no outbox yet, `schema sql` prints its DDL.
    """
    try:
        from faststream_outbox.storage.schema.comparison import compare_tables  # noqa: PLC0415 - Alembic is optional
    except ImportError as error:
        raise ProgramError(f"Alembic cannot be imported. {needs_extra('schema check', 'validate')}.") from error
    tables = run.outbox.tables.given()
    async with run.outbox.engine.connect() as connection:
        found = await connection.run_sync(compare_tables, list(tables.values()))
        outbox = tables[Kind.OUTBOX]
        functions = await connection.run_sync(read_functions, outbox)
    faults = [*found.faults, *found.searches, *found.version, *found.fillfactor, *found.autovacuum]
    if functions.outdated:
        ddl = publish_functions_ddl(outbox, schema=functions.schema)
        faults.append(Fault("; ".join(functions.outdated), tuple(ddl)))
    notes = [f"Compared: {', '.join(map(str, tables.values()))}."]
    if found.newer:
        notes.append("The tables are of a newer version: upgrade this package before you run any DDL.")
    elif faults:
        notes.append("Run this DDL outside a transaction.")
    return _Faults(faults, exit_code=1 if faults else 0, notes=notes)
