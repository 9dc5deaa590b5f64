"""The type of the exception in a dead letter's text: the same by Python and by SQL."""

import pytest

from faststream_outbox.storage.operating.exception_types import (
    exception_type,
    has_type,
    sql_exception_type,
    sql_has_type,
)
from faststream_outbox.storage.postgres.drivers import run_on
from faststream_outbox.storage.postgres.statements.statement import Statement
from faststream_outbox.subscriber.judge import render_traceback
from tests.backends import PostgresBackend


class NoMoneyError(Exception):
    pass


class Odd(Exception):  # noqa: N818 - a name without the usual end
    pass


def raised(error: Exception) -> str:
    try:
        raise error  # noqa: TRY301 - a traceback is wanted
    except Exception as caught:  # noqa: BLE001 - what a handler may raise
        return render_traceback(caught)


TEXTS = {
    raised(ValueError("no")): "ValueError",
    raised(ValueError()): "ValueError",
    raised(ValueError("a\nb: c")): "ValueError",
    raised(NoMoneyError("none")): f"{__name__}.NoMoneyError",
    raised(Odd("x")): f"{__name__}.Odd",
    raised(ExceptionGroup("several", [ValueError("a")])): "ExceptionGroup",
    render_traceback(KeyError("never raised")): "KeyError",
    "ValueError": "ValueError",
    "app.errors.PaymentError: no": "app.errors.PaymentError",
    "app.<locals>.PaymentError: no": "app.<locals>.PaymentError",
    "app.errors.NoStock: none": "app.errors.NoStock",
    "see.ticket: 7": None,
    "": None,
    "Duplicate": None,
    "Duplicate: see ticket 7": None,
    "not ours": None,
    "seen by Ada\n\nparked for retry_terminal: ValueError: no good": "ValueError",
    f"Duplicate\n\nparked for retry_terminal: {raised(ValueError('no'))}": "ValueError",
    f"Duplicate\n\nparked for rejected: {raised(Odd('no'))}": f"{__name__}.Odd",
    "cancelled\n\nlast failure: ValueError: poison": "ValueError",
    "TypeError: Ada's\n\nlast failure: ValueError": "ValueError",
    "cancelled\n\nlast failure: KeyError: 1\n\nparked for operator: ValueError": "KeyError",
    "cancelled\n\nparked for operator: ValueError": None,
    "cancelled\n\nlast failure: the server was down": None,
    "cancelled\n\nparked for max_deliveries": None,
    "UnicodeError\n\nparked for rejected": None,
    "7Error: x": None,
    " ValueError: x": None,
    "ValueError x": None,
    "x" * 5000 + "Error": None,
}
TRACEBACK, PARKED = "Traceback (most recent call last):", "\n\nparked for "
# What is read ends after 2,000 characters, whether these are all of a text, a part of it, or of several bytes each.
for letter, rest in (("x", ""), ("x", "y" * 100), ("é", ""), ("é", "y" * 100), ("x", "y" * 9000), ("é", "y" * 9000)):
    TEXTS |= {
        f"Odd: {letter * (2000 - len('Odd: ') - len(TRACEBACK))}{TRACEBACK}{rest}": "Odd",
        f"Odd: {letter * (2001 - len('Odd: ') - len(TRACEBACK))}{TRACEBACK}{rest}": None,
        f"OddError: {letter * (2000 - len('OddError: ') - len(PARKED))}{PARKED}{rest}": None,
        f"OddError: {letter * (2001 - len('OddError: ') - len(PARKED))}{PARKED}{rest}": "OddError",
    }


@pytest.mark.parametrize(("stored", "expected"), TEXTS.items(), ids=range(len(TEXTS)))
def test_the_type_stands_first(stored: str, expected: str | None) -> None:
    assert exception_type(stored) == expected
    if expected is not None:
        assert has_type(stored, expected)
        assert has_type(stored, expected.rpartition(".")[2])
        assert not has_type(stored, expected[1:])
    assert not has_type(stored, "OtherError")


def test_no_text_has_no_type() -> None:
    assert exception_type(None) is None


async def test_postgres_finds_the_same(postgres: PostgresBackend) -> None:
    statement = Statement(f"SELECT {sql_exception_type(':text::text')}, {sql_has_type(':text::text', ':name::text')}")
    async with postgres.engine.connect() as connection:
        for stored, expected in TEXTS.items():
            name = (expected or "x").rpartition(".")[2]
            [found] = await connection.run_sync(run_on, statement, text=stored, name=name)
            assert tuple(found) == (expected, None if expected is None else True), stored[:60]
