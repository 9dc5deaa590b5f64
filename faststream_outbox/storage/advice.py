"""What to do about an error of the database, where that can be said."""

from typing import Final

from faststream_outbox.storage.drivers import sqlstate

_MIGRATE: Final = (
    "Create or migrate the tables (Alembic, or metadata.create_all); "
    "`await broker.validate_schema()` tells what is missing, and the DDL that mends it."
)
_CREDENTIALS: Final = "Check the user and the password in the engine's URL."
_ADVICE: Final = {
    "42P01": _MIGRATE,
    "42703": _MIGRATE,
    "42501": "Grant the role what a consumer needs: see 'the tables' in the documentation.",
    "28P01": _CREDENTIALS,
    "28000": _CREDENTIALS,
    "3D000": "Check the database's name in the engine's URL.",
    "53300": "The server has no connection left: lower pool_size, or raise max_connections.",
    "25006": "The server, or the role, is read-only: connect to the primary.",
}


def advice(error: BaseException | None) -> str:
    """Say what to do about an error, with a space in front; nothing where there is nothing to say."""
    if error is None:
        return ""
    text = _ADVICE.get(sqlstate(error), "")
    if not text and isinstance(error, OSError) and error.errno is not None:
        text = "Is the server running, and are the host and the port of the engine's URL right?"
    return f" {text}" if text else ""
