"""A real PostgreSQL server without an installation, for tests, development and small deployments."""

import sys

if sys.platform == "win32":
    raise ImportError("faststream_outbox.embedded needs Linux or macOS. On Windows use WSL or an installed PostgreSQL.")

from faststream_outbox.embedded.database import Database
from faststream_outbox.embedded.errors import (
    AccountError,
    BinariesNotFoundError,
    DataDirError,
    EmbeddedPostgresError,
    PortTakenError,
    ServerStartError,
)
from faststream_outbox.embedded.server import EmbeddedPostgres

__all__ = (
    "AccountError",
    "BinariesNotFoundError",
    "DataDirError",
    "Database",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "PortTakenError",
    "ServerStartError",
)
