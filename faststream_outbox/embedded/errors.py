"""What can go wrong while running an embedded server, each with words that say what to do."""


class EmbeddedPostgresError(RuntimeError):
    """Base of every error this package raises."""


class BinariesNotFoundError(EmbeddedPostgresError):
    """No PostgreSQL server binaries, or none that can be run."""


class AccountError(EmbeddedPostgresError):
    """Started as root, and there is no account to hand the server to."""


class DataDirError(EmbeddedPostgresError):
    """The data directory cannot be used: another version made it, another server holds it, or it is something else."""


class ServerStartError(EmbeddedPostgresError):
    """The server (or `initdb`) did not come up; the message ends with the tail of its log."""


class OldProcessesError(ServerStartError):
    """Processes of an earlier, killed server still hold its memory."""


class PortTakenError(ServerStartError):
    """Another process listens on the port that this server should use."""
