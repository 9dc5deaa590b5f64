"""Classify errors of the database, and advise what to do about them."""

from typing import Final

from sqlalchemy.exc import DBAPIError

_MIGRATE: Final = (
    "Create or migrate the tables (Alembic, or metadata.create_all); "
    "`await broker.validate_schema()` lists what is missing, with the DDL that mends it."
)
_CREDENTIALS: Final = "Check the user and the password in the engine's URL."
_READ_ONLY: Final = "25006"
_ADVICE: Final = {
    "42P01": _MIGRATE,
    "42703": _MIGRATE,
    "42501": "Grant the role what a consumer needs: see 'the tables' in the documentation.",
    "28P01": _CREDENTIALS,
    "28000": _CREDENTIALS,
    "3D000": "Check the database's name in the engine's URL.",
    "53100": "The server's disk is full: make room there.",
    "57P03": "The server is starting, recovering or stopping.",
    "53300": "The server has no connection left: lower pool_size, or raise max_connections.",
    _READ_ONLY: "The server, or the role, is read-only: connect to the primary.",
}


class ReadOnlyServerError(Exception):
    """The server answers and takes no writes: a standby, or a primary that was replaced."""

    sqlstate = _READ_ONLY

    def __init__(self) -> None:
        super().__init__("the server is read-only")


def advice(error: BaseException | None) -> str:
    """Return advice about an error, with a space in front; an empty text if there is none."""
    if error is None:
        return ""
    text = _ADVICE.get(sqlstate(error), "")
    if not text and isinstance(error, OSError) and error.errno is not None:
        text = "Is the server running, and are the host and the port of the engine's URL right?"
    return f" {text}" if text else ""


# Errors that one row of a batch can cause: data (22), a constraint (23), a limit (54), an exception of a trigger (P0);
# and a statement that takes too long (57014), because half of the batch may be fast enough.
_ROW_ERRORS: Final = ("22", "23", "54", "57014", "P0")
# Raised by drivers, without a code, for a value that they cannot send.
_CLIENT_ERRORS: Final = (TypeError, ValueError, OverflowError)


def concerns_rows(error: BaseException) -> bool:
    """Return whether rows of the batch caused the error, so that a smaller batch may succeed."""
    state, error = sqlstate(error), _driver_error(error)
    if state:
        return state.startswith(_ROW_ERRORS)
    return isinstance(error, _CLIENT_ERRORS) or type(error).__name__ == "DataError"


def sqlstate(error: BaseException) -> str:
    """Return the five characters of Postgres' error code; an empty text if there is none."""
    error = _driver_error(error)
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else ""


def is_read_only(error: BaseException) -> bool:
    """Return whether the server refused a write because it is read-only."""
    return _READ_ONLY in {sqlstate(error), "" if error.__cause__ is None else sqlstate(error.__cause__)}


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
