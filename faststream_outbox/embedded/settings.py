"""The settings that a server is started with."""

from collections.abc import Mapping

from faststream_outbox.embedded.port import HOST

SettingValue = str | int | float | bool

# What makes a server trustworthy through a power cut, and slow; none of it matters for data that a test throws away.
# synchronous_commit stays on: with fsync off it costs nothing, and a server that is killed still keeps its commits.
_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    # No replica reads this server, so the log can leave out what only replicas need.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # No checkpoint in the middle of a test run.
    "checkpoint_timeout": "1h",
    # Compiling costs more than it saves on the small tables of a test.
    "jit": "off",
}
_OURS = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory", "logging_collector"})


def server_settings(port: int, *, fast: bool, extra: Mapping[str, SettingValue]) -> dict[str, str]:
    """Put together what goes on the command line of `postgres`."""
    settings = dict(_FAST) if fast else {}
    settings.update({name: _text(value) for name, value in extra.items()})
    # TCP on the loopback only: a socket file could not be guarded as simply, and its path is limited in length.
    return settings | {"port": str(port), "listen_addresses": HOST, "unix_socket_directories": ""}


def check_settings(extra: Mapping[str, SettingValue]) -> None:
    """Refuse settings that this package must decide itself."""
    taken = sorted(_OURS & {name.lower() for name in extra})
    if taken:
        raise ValueError(
            f"settings= must not contain {', '.join(taken)}: EmbeddedPostgres sets them itself. "
            "The port and the data directory have arguments of their own: port= and data_dir=."
        )


def _text(value: SettingValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
