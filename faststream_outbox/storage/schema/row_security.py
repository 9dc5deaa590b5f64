"""Find tables whose rows row-level security hides from the connected role."""

from collections.abc import Iterator, Sequence
from typing import Final

# Tables given by their quoted names. Rows are hidden from a role that has the grant of a command and no policy for it:
# Postgres then finds no rows, and says nothing. `row_security_active` is false for superusers, for roles with BYPASSRLS
# and for owners without FORCE. A command that was not granted is not asked for: a producer deletes nothing.
READ_HIDDEN: Final = """
SELECT t.name, CAST(current_user AS text), array_agg(c.name ORDER BY c.number)
  FROM unnest(CAST(:tables AS text[])) AS t(name)
  JOIN pg_catalog.pg_class r ON r.oid = to_regclass(t.name)
 CROSS JOIN (VALUES (1, 'SELECT', 'r'), (2, 'INSERT', 'a'), (3, 'UPDATE', 'w'), (4, 'DELETE', 'd'))
         AS c(number, name, letter)
 WHERE r.relrowsecurity AND row_security_active(r.oid)
   AND CASE c.name WHEN 'DELETE' THEN has_table_privilege(r.oid, c.name)
                   ELSE has_any_column_privilege(r.oid, c.name) END
   AND NOT EXISTS (
     SELECT FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS granted(role)
      WHERE p.polrelid = r.oid AND p.polpermissive AND p.polcmd IN ('*', c.letter)
        AND CASE granted.role WHEN 0 THEN true ELSE pg_has_role(granted.role, 'USAGE') END)
 GROUP BY t.name ORDER BY t.name
"""


class RowSecurityError(Exception):
    """Row-level security hides a table's rows from the connected role."""

    def __init__(self, table: str, role: str, commands: Sequence[str]) -> None:
        self.table = table
        self.role = role
        self.commands = tuple(commands)
        super().__init__(
            f"row-level security is on for {table}, and no policy lets the role {role} {self._listed}: it finds no "
            f"rows there, without an error. Create the policies: {' '.join(f'{each};' for each in self.policies())}"
        )

    @property
    def problem(self) -> str:
        """Return what is wrong, without the name of the table."""
        return f"row-level security is on, and no policy lets the role {self.role} {self._listed}"

    @property
    def _listed(self) -> str:
        *others, last = self.commands
        return f"{', '.join(others)} or {last}" if others else last

    def policies(self) -> Iterator[str]:
        """Yield the statements that create the policies, for a person to run or to narrow down."""
        role = '"' + self.role.replace('"', '""') + '"'
        for command in self.commands:
            name = '"' + f"{command.lower()}_{self.role}".replace('"', '""') + '"'
            allowed = "WITH CHECK (true)" if command == "INSERT" else "USING (true)"
            yield f"CREATE POLICY {name} ON {self.table} FOR {command} TO {role} {allowed}"
