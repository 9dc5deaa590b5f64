"""`Statement`: SQL with named parameters; `Columns`: a batch as one array per column; and what statements share.

All statements keep four rules. They compare the lease's token inside the statement, never in the caller. Time is the
database's `now()`, and times travel as epoch seconds, because drivers fail on instants that `datetime` cannot hold.
Batches come as sorted arrays, so that rows are locked in the order of their ids on the store's own connections (see
`LANE_SETTINGS`). No value of a user becomes part of a text: table names are quoted, the rest are parameters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

# A literal, a quoted identifier or a cast, which are left as they are; or a parameter.
_PARAMETER: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|::|:([a-z_][a-z0-9_]*)""")


class Statement:
    """One SQL statement. Parameters are written as `:name` and passed by name; this class numbers them.

    Example:
        statement = Statement("SELECT 1 FROM outbox WHERE id = :id::bigint AND queue = :queue::text")
        await executor.fetch(statement, queue="orders", id=7)

    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.parameters = tuple(dict.fromkeys(match[1] for match in _PARAMETER.finditer(sql) if match[1]))
        numbers = {name: f"${number}" for number, name in enumerate(self.parameters, start=1)}
        self.text = _replace(sql, numbers.__getitem__)  # as asyncpg takes it: `$1`
        self._pick = _picker(self.parameters)

    @cached_property
    def pyformat(self) -> str:
        """The text for drivers that take `%(name)s`."""
        return _replace(self.sql.replace("%", "%%"), "%({})s".format)

    @cached_property
    def psycopg(self) -> str:
        """The text for psycopg 3. Parameters are binary, `%(name)b`: it need not escape arrays then."""
        return _replace(self.sql.replace("%", "%%"), "%({})b".format)

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values in the order of the parameters; raise `TypeError` if one is missing or unknown."""
        try:
            arguments = self._pick(values)
        except KeyError:
            raise self._mismatch(values) from None
        if len(values) != len(arguments):
            raise self._mismatch(values)
        return arguments

    def _mismatch(self, values: Mapping[str, Any]) -> TypeError:
        missing = [name for name in self.parameters if name not in values]
        unknown = [name for name in values if name not in self.parameters]
        return TypeError(
            f"The statement takes the parameters {', '.join(self.parameters) or '(none)'}; missing: "
            f"{', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}. It begins: {self.sql[:80]}"
        )


def _replace(sql: str, placeholder: Callable[[str], str]) -> str:
    return _PARAMETER.sub(lambda match: placeholder(match[1]) if match[1] else match[0], sql)


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple([values[name] for name in names])  # an itemgetter of one name returns no tuple


class Columns:
    """The columns of a batch, by name and type. Each is one array parameter; the statement unnests them into rows.

    Example:
        leases = Columns("lease", id="bigint", token="uuid")
        leases.unnest("l")  # unnest(:lease_id::bigint[], :lease_token::uuid[]) AS l(id, token)
        leases.fill([(7, token)])  # {"lease_id": [7], "lease_token": [token]}

    """

    def __init__(self, batch: str, **types: str) -> None:
        self._parameters = [f"{batch}_{name}" for name in types]
        self._arrays = {name: f":{batch}_{name}::{each}[]" for name, each in types.items()}

    def __getitem__(self, name: str) -> str:
        """Return the array of one column, as it is written in a statement."""
        return self._arrays[name]

    def unnest(self, alias: str, *names: str, numbered: bool = False) -> str:
        """Return the rows, with all columns or some, as an item of FROM; `numbered` adds their number, `n`."""
        names = names or tuple(self._arrays)
        arrays = ", ".join(self._arrays[name] for name in names)
        if numbered:
            return f"unnest({arrays}) WITH ORDINALITY AS {alias}({', '.join(names)}, n)"
        return f"unnest({arrays}) AS {alias}({', '.join(names)})"

    def fill(self, entries: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the parameters for these rows, each a sequence in the order of the columns."""
        if not entries:
            return {name: [] for name in self._parameters}
        return dict(zip(self._parameters, map(list, zip(*entries, strict=True)), strict=True))


def epoch(column: str) -> str:
    """Return SQL for an instant as a number of seconds."""
    # EXTRACT would go through `numeric`, which costs the server more than the rest of the column.
    return f"date_part('epoch', {column})"


# The fields of `OutboxRow`, in their order.
ROW: Final = ", ".join(
    [
        *("o.id", "o.queue", "o.entity_key", "o.payload", "o.headers::text", "o.timer_id"),
        *(epoch("o.created_at"), epoch("o.next_attempt_at"), epoch("o.acquired_at"), "o.acquired_token"),
        *(epoch("o.lease_expires_at"), "o.attempts_count", "o.deliveries_count"),
        *(epoch("o.first_attempt_at"), epoch("o.last_attempt_at")),
    ]
)
# How many bytes a row takes on its way to the client, about. No large value is read for it: of headers that are stored
# compressed, only the compressed size is known. Text of JSON is rarely compressed to less than a twentieth.
SIZE: Final = """octet_length(o.payload) + coalesce(pg_column_size(o.headers), 0)
           * CASE WHEN pg_column_compression(o.headers) IS NULL THEN 1 ELSE 20 END"""
# One delivery more; the largest bigint stays, because an overflow would fail the whole claim.
DELIVERED: Final = "least(o.deliveries_count, 9223372036854775806) + 1"
LEASE: Final = f"""acquired_at = now(), deliveries_count = {DELIVERED},
       lease_expires_at = now() + make_interval(secs => :lease_seconds::float8), acquired_token = :token::uuid"""
UNLEASE: Final = "acquired_token = NULL, acquired_at = NULL, lease_expires_at = '-infinity'"
# The lease of a row is over: its time has passed, or the node that holds it is dead (see `storage/nodes.py`). The text
# of a token is made only for leases that were taken a while ago.
_DEAD: Final = """o.acquired_at < to_timestamp(:claimed_before::float8) AND substr(o.acquired_token::text, 15, 1) = '8'
             AND left(o.acquired_token::text, 13) <> ALL (:alive::text[])"""
OVER: Final = f"o.acquired_token IS NOT NULL AND (o.lease_expires_at <= now() OR ({_DEAD}))"
# A row that its process did not settle twice, or that may be delivered only once more, is a suspect. Deliveries that
# failed are counted as attempts, so the difference is the number of deliveries without an end.
_SUSPECT: Final = """(o.deliveries_count - o.attempts_count >= 2
             OR o.deliveries_count >= :max_deliveries::bigint - 1)"""
# The rows that a recovery changes: all whose lease is over, but for suspects that can be claimed already.
COMES_BACK: Final = f"{OVER} AND NOT ({_SUSPECT} AND o.lease_expires_at <= now())"
# A suspect keeps its token, because only the claim of suspects may take it. Any other row becomes free.
COME_BACK: Final = f"""acquired_token = CASE WHEN {_SUSPECT} THEN o.acquired_token END,
       acquired_at = CASE WHEN {_SUSPECT} THEN o.acquired_at END,
       lease_expires_at = CASE WHEN {_SUSPECT} THEN now() ELSE '-infinity' END"""
# A row that was not handled becomes free, and the delivery is not counted.
# A suspect is a row with a token whose lease is over. It stays one, under a new token that no process knows.
_RELEASE: Final = """acquired_at = NULL, deliveries_count = o.deliveries_count - 1,
       acquired_token = CASE WHEN {suspect} THEN gen_random_uuid() END,
       lease_expires_at = CASE WHEN {suspect} THEN now() ELSE '-infinity' END"""
RELEASE: Final = _RELEASE.format(suspect="l.suspect")
# The same for all rows of one claim.
RELEASE_CLAIM: Final = _RELEASE.format(suspect=":suspects::bool")
LEASES: Final = Columns("lease", id="bigint", token="uuid")  # noqa: S106 - a type, no password


def within_bytes(rows: str) -> str:
    """Return the first of these rows that have `:max_bytes` together, and one more."""
    # No ORDER BY: the rows keep their order, and no sort copies them.
    sums = f"SELECT b.*, sum(b.size) OVER (ROWS UNBOUNDED PRECEDING) - b.size AS before FROM {rows} b"
    return f"(SELECT * FROM ({sums}) b WHERE b.before < :max_bytes::bigint)"


def held(leases: Columns) -> str:
    """Return the condition for the rows of a batch, unnested as `l`, whose lease is still the caller's.

    The array stands twice: probing the index with all of it at once visits, and locks, rows in the order of ids; a
    plain join may walk the whole index.
    """
    return f"o.id = ANY ({leases['id']}) AND o.id = l.id AND o.acquired_token = l.token"
