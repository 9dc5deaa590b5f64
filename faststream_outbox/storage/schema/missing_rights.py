"""Find rights without which a consumer settles nothing, and which the connected role does not have."""

from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.schema.tables import quoted_name

# Pairs of a table, by its quoted name, and a right on it. A right on some columns counts: which columns a statement
# needs is its own affair, and a false alarm would take a process out of service. Rights that a role has by another
# role count as far as it inherits them, as in statements.
READ_MISSING: Final = """
SELECT w.name, CAST(current_user AS text), array_agg(w.command ORDER BY w.number)
  FROM unnest(CAST(:tables AS text[]), CAST(:commands AS text[])) WITH ORDINALITY AS w(name, command, number)
 WHERE NOT CASE w.command WHEN 'DELETE' THEN has_table_privilege(to_regclass(w.name), w.command)
                          ELSE has_any_column_privilege(to_regclass(w.name), w.command) END
 GROUP BY w.name ORDER BY min(w.number)
"""


class MissingRightsError(Exception):
    """The connected role lacks rights on a table that a consumer needs."""

    sqlstate = "42501"

    def __init__(self, table: str, role: str, commands: Sequence[str]) -> None:
        listed, quoted = ", ".join(commands), '"' + role.replace('"', '""') + '"'
        self.grant = f"GRANT {listed} ON {table} TO {quoted};"
        super().__init__(f"the role {role} has no right to {listed} on {table}. Let the owner grant it: {self.grant}")


def needed_rights(outbox: Table, dlq: Table | None, shards: Table | None) -> Iterator[tuple[str, str]]:
    """Yield each table and right without which no message is settled. Only handlers that publish insert."""
    needed = ((outbox, ("SELECT", "UPDATE", "DELETE")), (dlq, ("INSERT",)), (shards, ("SELECT", "INSERT", "UPDATE")))
    for table, commands in needed:
        if table is not None:
            yield from ((quoted_name(table.name, table.schema), command) for command in commands)
