"""`Finding`: one thing that is wrong with an outbox, and what mends it."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
"""How bad a finding is: messages are not handled, they may soon not be, or it is only worth knowing."""

# Worst first.
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with an outbox.

    Attributes:
        check: The name of the check that found it, such as `"snapshot"`.
        severity: `"error"` (messages are not handled, or will be lost), `"warning"` (they may soon not be, or are
            handled more slowly than they could) or `"info"` (worth knowing).
        what: What is wrong, in a sentence.
        since: Since when, where that is known.
        why: Why it matters.
        cure: What mends it.
        sql: The statements that mend it, where there are any: each ends with `;` at the end of a line. Run them outside
            a transaction.
        commands: The commands that show the cause and mend it, where there are any, each on one line for a shell. Words
            in capital letters are yours to replace: `WHY`, `QUEUE`.
        alternatives: Commands of which each can take the place of the last of `commands`: run one of them, not all.

    Example:
        for finding in await operations.doctor():
            print(finding.severity, finding.what, finding.cure)

    """

    check: str
    severity: Severity
    what: str
    since: datetime | None
    why: str
    cure: str
    sql: str | None = None
    commands: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


def script(*statements: str) -> str:
    """Return statements as the text of `Finding.sql`."""
    return "".join(f"{statement.rstrip().rstrip(';')};\n" for statement in statements)


def command(*words: str) -> str:
    """Return a command of this package as one line for a shell."""
    return shlex.join(["faststream-outbox", *words])


def literal(value: str) -> str:
    """Return a text as SQL has it."""
    # Standard strings have no escapes but the doubled quote; a line break inside would end a statement of the script.
    return "'" + re.sub(r"[\r\n]", " ", value).replace("'", "''") + "'"


def session_title(pid: str, role: str, label: str, state: str) -> str:
    """Return who a session of the server is, in a few words."""
    known = filter(None, (f"role {role or 'unknown'}", label, state))
    return f"Session {pid} ({', '.join(known)})"


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Return findings by their severity; those of one severity stay in the order of the checks."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


# What the statements of other findings need: tables that nobody has locked, transactions that can write, and no old
# snapshot, behind which CREATE INDEX CONCURRENTLY waits without an end.
_RUN_FIRST: Final = ("locks", "writable", "snapshot")


def in_running_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in the order in which their statements can run one after the other."""
    first = [finding for check in _RUN_FIRST for finding in findings if finding.check == check]
    return first + [finding for finding in findings if finding.check not in _RUN_FIRST]
