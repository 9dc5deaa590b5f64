"""`faststream-outbox doctor`: what is wrong with an outbox, and what mends it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from faststream_outbox.cli.operating.application import load_broker
from faststream_outbox.cli.operating.arguments import RoleKind
from faststream_outbox.cli.operating.command import Run
from faststream_outbox.cli.operating.values import as_json, as_time, printable
from faststream_outbox.cli.operating.views import View
from faststream_outbox.operations import Finding, diagnose
from faststream_outbox.operations.doctor.finding import in_running_order

_COLOURS: Final = {"error": "bold red", "warning": "yellow", "info": "cyan"}


async def doctor(
    run: Run,
    *,
    fix_sql: Annotated[
        bool, typer.Option("--fix-sql", help="Print only the statements that mend what was found, for psql.")
    ] = False,
    role_kind: Annotated[
        RoleKind | None,
        typer.Option(
            "--as", help="What the role of the connection is for; by default an operator, of --app a consumer."
        ),
    ] = None,
) -> View:
    """Look for everything that is known to go wrong: what, since when, why it matters, what mends it."""
    findings = await _examine(run, None if role_kind is None else role_kind.value)
    wrong = any(finding.severity != "info" for finding in findings)
    notes = []
    if fix_sql and any(finding.sql is None for finding in findings):
        notes = ["Some findings have no statement that mends them: run doctor without --fix-sql to see them."]
    return _Diagnosis(findings, _options(run.given), fix_sql=fix_sql, exit_code=1 if wrong else 0, notes=notes)


def _options(given: Mapping[str, Any]) -> str:
    """Return the options by which this command found the outbox: the commands of a cure need them too."""
    words = list[str]()
    for key, value in given.items():
        # A DSN may have a password: it is left to be filled in.
        words += [f"--{key.replace('_', '-')}", key.upper() if key in ("dsn", "dsn_password") else str(value)]
    return f" {shlex.join(words)}" if words else ""


async def _examine(run: Run, kind: Any) -> list[Finding]:
    if run.settings.app is not None:
        # It knows what its subscribers need of their pool, too.
        return await load_broker(run.settings.app).operations.doctor(kind=kind)
    tables = run.outbox.tables
    return await diagnose(
        run.outbox.engine,
        outbox_table=tables.outbox,
        dlq_table=tables.dlq,
        shards_table=tables.shards,
        control_table=tables.control,
        audit_table=tables.audit,
        nodes_table=tables.nodes,
        kind=kind or "operator",
    )


@dataclass
class _Diagnosis(View):
    findings: Sequence[Finding]
    options: str
    fix_sql: bool

    def as_json(self) -> Any:
        return as_json(list(self.findings))

    def json_lines(self) -> Iterable[Any]:
        return map(as_json, self.findings)

    def as_text(self) -> str:
        if self.fix_sql:
            return "\n".join(_script(finding) for finding in in_running_order(self.findings) if finding.sql)
        return "\n\n".join(_describe(finding, self.options) for finding in self.findings) or "Nothing is wrong."

    def as_rich(self) -> Any:
        from rich.console import Group  # noqa: PLC0415 - not needed in a pipe

        if self.fix_sql or not self.findings:
            return self.as_text()
        return Group(*(each for finding in self.findings for each in _show(finding, self.options)))


def _describe(finding: Finding, options: str) -> str:
    lines = [f"{name} {text}" for name, text in _sentences(finding)]
    return "\n".join([*lines, *_lines(finding, options)])


def _show(finding: Finding, options: str) -> Iterable[Any]:
    """Return a finding for a terminal: sentences are broken beside their names, what can be pasted stays whole."""
    from rich.table import Table  # noqa: PLC0415 - not needed in a pipe
    from rich.text import Text  # noqa: PLC0415

    sentences = Table.grid(padding=(0, 1, 0, 0))
    sentences.add_column(width=max(map(len, _COLOURS)))
    sentences.add_column(overflow="fold")
    for name, text in _sentences(finding):
        sentences.add_row(Text(name.rstrip(), style=_COLOURS.get(name.strip().lower(), "")), Text(text))
    return [sentences, *(Text(line, no_wrap=True, overflow="ignore") for line in [*_lines(finding, options), ""])]


def _sentences(finding: Finding) -> Sequence[tuple[str, str]]:
    since = "" if finding.since is None else f" (since {as_time(finding.since)})"
    named = (
        (f"{finding.severity.upper()} ", f"{finding.what}{since}"),
        ("  why: ", finding.why),
        ("  cure:", finding.cure),
    )
    return [(name, printable(text)) for name, text in named]


def _lines(finding: Finding, options: str) -> Sequence[str]:
    """Return the statements and commands; those of which only one is to be run are comments but for the first."""
    lines = [f"    {line}" for line in (finding.sql or "").splitlines()]
    lines += [f"    {command}{options}" for command in finding.commands]
    lines += [f"    # or: {command}{options}" for command in finding.alternatives]
    return [printable(line) for line in lines]


def _script(finding: Finding) -> str:
    # A line break in a name must not end the comment.
    return f"-- {' '.join(finding.what.split())}\n{(finding.sql or '').rstrip()}"
