"""Checks of the server and of the way to it: version, standby, clock, connections."""

from collections.abc import AsyncIterator
from typing import Final

from faststream_outbox.operations.doctor.examination import Examination
from faststream_outbox.operations.doctor.finding import Finding, script
from faststream_outbox.storage.postgres.statements.examine.server import SERVER_TIME
from faststream_outbox.storage.schema.tables import quoted_name

# The oldest major version that is tested.
OLDEST_VERSION: Final = 15


async def check_version(examination: Examination) -> AsyncIterator[Finding]:
    """Name a server that is older than what is tested."""
    if examination.server.version_number < OLDEST_VERSION * 10_000:
        yield Finding(
            "version",
            "error",
            f"The server is Postgres {examination.server.version}; the oldest that is supported is {OLDEST_VERSION}.",
            None,
            "Statements use what older servers do not have, and fail there.",
            f"Upgrade the server to Postgres {OLDEST_VERSION} or newer.",
        )


async def check_writable(examination: Examination) -> AsyncIterator[Finding]:
    """Name a standby, and a server, database or role that is set to read-only."""
    server = examination.server
    why, viewer = "Nothing can be published, claimed or settled here.", examination.kind == "viewer"
    if server.in_recovery:
        yield Finding(
            "writable",
            "info" if viewer else "error",
            "The server is a standby (it is in recovery): it takes no writes.",
            None,
            why,
            "Connect to the primary: name all hosts in the engine's URL, with target_session_attrs=read-write. If "
            "there is no primary any more, promote this server: SELECT pg_promote().",
        )
    elif server.read_only and not viewer:
        cure, sql = _make_writable(server.read_only_source, server.role, server.database)
        what = f"Transactions are read-only: default_transaction_read_only is on ({server.read_only_source})."
        yield Finding("writable", "error", what, None, why, cure, sql)


def _make_writable(source: str, role: str, database: str) -> tuple[str, str | None]:
    """Return how to make transactions writable again, by where the setting comes from."""
    name, role, database = "default_transaction_read_only", quoted_name(role), quoted_name(database)
    statements = {
        "database": f"ALTER DATABASE {database} RESET {name}",
        "user": f"ALTER ROLE {role} RESET {name}",
        "database user": f"ALTER ROLE {role} IN DATABASE {database} RESET {name}",
        "configuration file": f"ALTER SYSTEM SET {name} = off",
        "global": f"ALTER ROLE ALL RESET {name}",
    }
    if source not in statements:
        return f"Remove {name} from the engine's URL, its connect_args or PGOPTIONS.", None
    cure = "If another server has replaced this one, connect to that one. Otherwise reset the setting, and reconnect."
    # The setting itself forbids the statement.
    writable = "SET default_transaction_read_only = off"
    reload = ["SELECT pg_reload_conf()"] if source == "configuration file" else []
    return cure, script(writable, statements[source], *reload)


async def check_clock(examination: Examination) -> AsyncIterator[Finding]:
    """Name clocks that differ by more than the answer took."""
    sent = examination.clock()
    [[server_time]] = await examination.fetch(SERVER_TIME)
    received = examination.clock()
    # The server read its clock at some time between these two.
    ahead = sent - server_time if server_time < sent else min(0.0, received - server_time)
    if abs(ahead) > examination.limits.clock_seconds:
        direction = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            "clock",
            "warning",
            f"The clock of this process is {abs(ahead):,.1f} seconds {direction} that of the server.",
            None,
            "Leases and delays use the server's clock, but instants that the application computes (activate_at) use "
            "its own: such messages are due at another time than it meant. Times in logs do not match those of rows.",
            "Synchronise the clocks of both machines by NTP (chrony, systemd-timesyncd).",
        )


async def check_connections(examination: Examination) -> AsyncIterator[Finding]:
    """Name a server that has hardly any connection left."""
    server = examination.server
    if server.connected > server.connections * examination.limits.connections_share:
        yield Finding(
            "connections",
            "warning",
            f"{server.connected} of the server's {server.connections} connections are in use.",
            None,
            "When none is left, new processes cannot start, and those that lost theirs cannot return.",
            "Lower pool_size of the applications, put publishers behind a pooler, or raise max_connections (and "
            "restart the server).",
        )


async def check_pool(examination: Examination) -> AsyncIterator[Finding]:
    """Name a pool of connections that is too small for the subscribers of the broker."""
    pool = examination.pool
    if pool is not None and pool.given is not None and pool.given < pool.needed:
        yield Finding(
            "pool",
            "error",
            f"The engine's pool gives {pool.given} connection{'' if pool.given == 1 else 's'}, and the subscribers of "
            f"this broker need {pool.needed}.",
            None,
            "The broker refuses to start: a subscriber would wait for a connection for ever.",
            f"Use create_async_engine(…, pool_size={pool.needed}).",
        )
