"""Classify errors of the database, advise what to do about them, and remove the values of rows from their texts."""

import re
import traceback
from typing import Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, OperationalError, StatementError

_E = TypeVar("_E", bound=BaseException)

_MIGRATE: Final = (
    "Create or migrate the tables (Alembic, or metadata.create_all); "
    "`await broker.validate_schema()` (extra `validate`) lists what is missing, with the DDL that mends it."
)
_CREDENTIALS: Final = "Check the user and the password in the engine's URL."
_READ_ONLY: Final = "25006"
# A statement waited for a lock for longer than `lock_timeout`.
LOCK_TIMEOUT: Final = "55P03"
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
    LOCK_TIMEOUT: "Another session has locked the table: `faststream-outbox doctor` names it, and what ends that.",
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


# The server is not there, starts or stops, or has no connection left.
_OUTAGES: Final = ("08", "57P0", "53300")


def is_outage(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, says that the database is not there or takes no writes."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if sqlstate(each).startswith(_OUTAGES) or is_read_only(each) or _is_connection_error(each):
            return True
        each = each.__cause__ or each.__context__
    return False


def _is_connection_error(error: BaseException) -> bool:
    if isinstance(error, DBAPIError):
        # psycopg has no code for a connection that was refused.
        refused = isinstance(error, OperationalError) and not sqlstate(error)
        return error.connection_invalidated or refused or isinstance(error.orig, OSError)
    # asyncpg raises those of the network as they are; others may come from any client.
    return isinstance(error, OSError) and any(
        str(frame.f_globals.get("__name__")).startswith("sqlalchemy.")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _driver_error(error: BaseException) -> BaseException:
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


# The modules of the drivers' errors; SQLAlchemy has its own classes for those of asyncpg.
_DRIVER_MODULES: Final = ("asyncpg", "psycopg", "sqlalchemy.dialects.postgresql")
# Data errors quote the value in their message; so do drivers about a value that they cannot send, without a code.
_QUOTES_VALUES: Final = ("22",)
_QUOTED: Final = re.compile(r'"[^"]*"')
_CLASS_PREFIX: Final = re.compile(r"<class '[^']*'>: ")


def without_values(error: _E) -> _E:
    """Return an error whose text holds no parameters of statements and no values of rows: itself, or a copy.

    Errors of the database are copied without parameters, and without DETAIL and CONTEXT, which quote rows; their codes,
    their constraints and the frames of their tracebacks stay. The errors that led to an error are copied as well.
    """
    try:
        made: _E = _Copies().of(error)
    except Exception:  # noqa: BLE001 - a class may refuse to be copied, and the error must be logged
        plain: Any = RuntimeError(f"{type(error).__name__} (its text is left out, because it may hold values of rows)")
        made = plain
    return made


class _Copies:
    """The copies of an error and of those that led to it, each made once: errors may refer to each other."""

    def __init__(self) -> None:
        self._made: dict[int, BaseException] = {}

    def of(self, error: Any) -> Any:
        """Return the copy of an error, or the error if neither it nor what led to it is of the database."""
        if error is None or id(error) in self._made:
            return None if error is None else self._made[id(error)]
        self._made[id(error)] = error
        led_here = error.__cause__, error.__context__
        cause, context = map(self.of, led_here)
        if isinstance(error, BaseExceptionGroup):
            copy: BaseException = error.derive([self.of(each) for each in error.exceptions])
        elif _is_of_database(error):
            copy = self._copy(error)
        elif (cause, context) == led_here:
            return error
        else:
            copy = _new(error, error.args)
        copy.__cause__, copy.__context__ = cause, context
        copy.__suppress_context__, copy.__traceback__ = error.__suppress_context__, error.__traceback__
        self._made[id(error)] = copy
        return copy

    def _copy(self, error: BaseException) -> BaseException:
        if isinstance(error, StatementError):
            cause = error.orig
            named = "" if cause is None else f"({type(cause).__module__}.{type(cause).__name__}) {_safe_text(cause)}"
            copy = _new(error, (named or "its text may hold values",))
            copy.orig, copy.params, copy.hide_parameters = self.of(cause), None, True
        else:
            copy = _new(error, (_safe_text(error),))
            copy.detail = copy.context = None  # asyncpg's
            if sqlstate(error):
                copy.sqlstate = sqlstate(error)
            if "_info" in vars(copy):
                copy._info = None  # noqa: SLF001 - psycopg's answer of the server
        made: BaseException = copy
        return made


def _new(error: BaseException, arguments: tuple[object, ...]) -> Any:
    copy: Any = type(error).__new__(type(error))
    copy.__dict__.update(vars(error))
    copy.args = arguments
    return copy


def _is_of_database(error: BaseException) -> bool:
    return isinstance(error, StatementError) or type(error).__module__.startswith(_DRIVER_MODULES)


def _safe_text(error: BaseException) -> str:
    """Return the first line of an error, which names what went wrong; the other lines quote rows."""
    text = str(error).strip().partition("\n")[0]
    prefix = _CLASS_PREFIX.match(text)
    named, text = (prefix[0], text[prefix.end() :]) if prefix else ("", text)
    state = sqlstate(error)
    # An error while connecting has no code either, and names hosts and users only.
    if state.startswith(_QUOTES_VALUES) or (not state and concerns_rows(error)):
        text = _QUOTED.sub('"…"', text.partition(": ")[0])
    return named + text
