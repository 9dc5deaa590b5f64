"""The rights that producers, consumers, operators and viewers need, as GRANT statements."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from sqlalchemy import Table

from faststream_outbox.storage.schema.functions import publish_functions
from faststream_outbox.storage.schema.tables import quoted_name

RoleKind = Literal["producer", "consumer", "operator", "viewer"]
"""What a role of the database is for: it publishes, it consumes or relays, it operates the outbox, or it only reads."""

# The rights of each kind on each table, in the order in which they are printed. A consumer may insert, because its
# handlers may publish. `SELECT` on the dead letters is for the look at start, which finds a missing table at once.
# Postgres locks rows (FOR UPDATE) for a role that may update one column: where rows are locked and never changed, that
# is a column which nothing depends on.
_RIGHTS: Final[dict[RoleKind, dict[str, Sequence[str]]]] = {
    # An id of its own choice could be one that the sequence will draw, and make a publish of another service fail.
    "producer": {
        "outbox": (
            "INSERT (queue, entity_key, payload, headers, timer_id, next_attempt_at)",
            "SELECT (id, queue, timer_id)",
        )
    },
    "consumer": {
        "outbox": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        "dlq": ("SELECT", "INSERT"),
        "shards": ("SELECT", "INSERT", "UPDATE"),
        "control": ("SELECT",),
        "nodes": ("SELECT", "INSERT", "DELETE"),
        "inbox": ("SELECT", "INSERT", "DELETE", "UPDATE (seen_at)"),
    },
    "operator": {
        "outbox": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        "dlq": ("SELECT", "INSERT", "DELETE", "UPDATE (last_exception)"),
        "control": ("SELECT", "INSERT", "UPDATE", "DELETE"),
        # An act counts its rows while it runs. What else the audit says cannot be changed.
        "audit": ("SELECT", "INSERT", "UPDATE (count)"),
        "nodes": ("SELECT",),
    },
    "viewer": {
        "outbox": ("SELECT",),
        "dlq": ("SELECT",),
        "control": ("SELECT",),
        "audit": ("SELECT",),
        "nodes": ("SELECT",),
    },
}

# The kinds of roles whose work includes the doctor.
_EXAMINING: Final[tuple[RoleKind, ...]] = ("operator", "viewer")
# The kinds of roles that publish, and may call the functions for it.
_PUBLISHING: Final[tuple[RoleKind, ...]] = ("producer", "consumer", "operator")


@dataclass(frozen=True, slots=True)
class Grant:
    """One right on a table, or on the schema of tables; `columns` are those that it is limited to."""

    right: str
    table: Table | None
    schema: str | None
    columns: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """What the right is on, as it is written in a GRANT."""
        if self.table is None:
            return f"SCHEMA {quoted_name(str(self.schema))}"
        return quoted_name(self.table.name, self.table.schema)

    def __str__(self) -> str:
        return f"{self.right} ({', '.join(map(quoted_name, self.columns))})" if self.columns else self.right


def grants_of(kind: RoleKind, **tables: Table | None) -> list[Grant]:
    """Return the rights that a role of this kind needs; tables are named `outbox`, `dlq`, `shards` and so on."""
    if kind not in _RIGHTS:
        raise ValueError(f"The kind of a role is one of {', '.join(get_args(RoleKind))}, not {kind!r}.")
    rights = [
        (table, right)
        for name, each in _RIGHTS[kind].items()
        if (table := tables.get(name)) is not None
        for right in each
    ]
    schemas = dict.fromkeys(table.schema for table, _ in rights if table.schema)
    return [
        *(Grant("USAGE", None, schema) for schema in schemas),
        *(_grant(table, right) for table, right in rights),
    ]


def _grant(table: Table, right: str) -> Grant:
    name, _, columns = right.partition(" (")
    return Grant(name, table, table.schema, tuple(columns.rstrip(")").split(", ")) if columns else ())


def grant_statements(grants: Iterable[Grant], role: str) -> Iterator[str]:
    """Yield one GRANT for each table or schema."""
    rights: dict[str, list[str]] = {}
    for grant in grants:
        rights.setdefault(grant.target, []).append(str(grant))
    for target, each in rights.items():
        yield f"GRANT {', '.join(each)} ON {target} TO {quoted_name(role)}"


def read_all_stats(role: str) -> str:
    """Return the GRANT that shows a role the sessions of all others, of every database of the server."""
    return f"GRANT pg_read_all_stats TO {quoted_name(role)}"


def grants_sql(
    role: str,
    kind: RoleKind,
    *,
    outbox_table: Table,
    dlq_table: Table | None = None,
    shards_table: Table | None = None,
    control_table: Table | None = None,
    audit_table: Table | None = None,
    nodes_table: Table | None = None,
    inbox_table: Table | None = None,
    functions_schema: str | None = None,
) -> str:
    """Return the GRANT statements that give a role what it needs and no more, one on each line.

    A producer publishes, timers too; to extend or cancel timers it needs what a consumer has on the outbox. No role
    needs a right on a sequence, because the ids of these tables are identities. Roles that do not own the database
    need CONNECT on it, which Postgres grants to all by default.

    Of an operator and a viewer the last line is a comment: with that right the doctor says more of sessions that are in
    the way. It is much wider than the others, since it shows the statements of all sessions of the server.

    Args:
        role: The name of the role, as it is, without quotes.
        kind: What the role is for: `"producer"`, `"consumer"` (also a relay), `"operator"` or `"viewer"`.
        outbox_table: The table of messages.
        dlq_table: The table of dead letters.
        shards_table: The table of shard leases, for consumers with `HashShards()`.
        control_table: The table of pauses.
        audit_table: The table of what operators did.
        nodes_table: The table of processes.
        inbox_table: The table of an inbox.
        functions_schema: The schema of the functions of `publish_functions_ddl`, to grant `EXECUTE` on them too.

    Example:
        print(
            grants_sql(
                "shop_worker", "consumer", outbox_table=outbox_table, dlq_table=dlq_table
            )
        )

    """
    if not isinstance(role, str) or not role:
        raise ValueError(f"role is the name of a role of the database, not {role!r}.")
    grants = grants_of(
        kind,
        outbox=outbox_table,
        dlq=dlq_table,
        shards=shards_table,
        control=control_table,
        audit=audit_table,
        nodes=nodes_table,
        inbox=inbox_table,
    )
    statements = [*grant_statements(grants, role)]
    if functions_schema is not None and kind in _PUBLISHING:
        listed = ", ".join(each.signature for each in publish_functions(outbox_table, functions_schema))
        statements.append(f"GRANT EXECUTE ON FUNCTION {listed} TO {quoted_name(role)}")
    wider = f"-- Shows the doctor the sessions of other roles: {read_all_stats(role)};\n" if kind in _EXAMINING else ""
    return "".join(f"{statement};\n" for statement in statements) + wider
