"""The errors of the embedded server; each message says what to do."""


class EmbeddedPostgresError(RuntimeError):
    """Base of every error that this package raises."""


class BinariesNotFoundError(EmbeddedPostgresError):
    """There are no PostgreSQL server binaries, or they cannot be run."""


class AccountError(EmbeddedPostgresError):
    """There is no account that can run the server."""


class DataDirError(EmbeddedPostgresError):
    """The data directory cannot be used: wrong version or owner, in use, or not a data directory."""


class ServerStartError(EmbeddedPostgresError):
    """The server or `initdb` did not start; the message ends with its log."""


class PortTakenError(ServerStartError):
    """The port that was asked for is in use."""
