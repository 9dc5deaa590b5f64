"""How reads run a statement, and the settings of a transaction that only reads."""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from faststream_outbox.storage.postgres.drivers import Records
from faststream_outbox.storage.postgres.statements.statement import Statement

# Each plan is made for the table as it is now, and for the values that are asked for.
_SETTINGS: Final = {
    "transaction_read_only": "on",
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # A table may be locked by a migration, or by a forgotten transaction: say so instead of waiting for its end.
    "lock_timeout": "3s",
}
_VALUES: Final = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in _SETTINGS.items())
BEGIN_READ: Final = Statement(f"SELECT {_VALUES}")


class Execute(Protocol):
    """Runs a statement on a synchronous session or connection."""

    def __call__(self, session: Any, statement: Statement, /, **values: Any) -> Records:
        """Return the records."""


def only_needed(statement: Statement, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that are parameters of the statement."""
    return {name: values[name] for name in statement.parameters}


def part_size(sizes: Collection[int], wanted: int, *, filtered: bool, examined: int) -> int:
    """Return how many rows the next statement of a search examines.

    Without a filter every row is wanted: one more than are wanted tells whether there are more. With one, a first small
    part is enough if most rows match; the last one uses up what a page may examine.
    """
    smallest, *_, largest = sizes
    if filtered:
        return largest if examined > smallest else sorted(sizes)[-2]
    return next((size for size in sizes if size > wanted), largest)
