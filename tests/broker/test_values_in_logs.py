"""No log record, and no error of our own statements, holds what a message or a row holds."""

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from faststream_outbox import NoRetry, OutboxBroker, OutboxResponse
from faststream_outbox.annotations import OutboxSession
from tests.backends import PostgresBackend
from tests.metrics.brokers import make_broker, running
from tests.waiting import until

MARKER = "swordfish"
# As text; as Postgres and as Python show bytes.
FORMS = (MARKER, MARKER.encode().hex())
REFUSE_NEXT = "ALTER TABLE outbox ADD CHECK (queue <> 'next')"
REFUSE_DEAD = "ALTER TABLE outbox_dlq ADD CHECK (queue = '')"
# The payload is no number, and Postgres quotes it.
NUMBER_OF_PAYLOAD = """CREATE FUNCTION read_number() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM convert_from(OLD.payload, 'UTF8')::int; RETURN NEW; END $$"""
BEFORE_CLAIM = "CREATE TRIGGER read_number BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION read_number()"
UNIQUE_AT_COMMIT = ("CREATE TABLE names (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)",)


class Lines(logging.Handler):
    """All records of the process, as text with their tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, event: str) -> list[logging.LogRecord]:
        return [record for record in self.records if vars(record).get("event") == event]

    @property
    def text(self) -> str:
        return "\n".join(logging.Formatter().format(record) + str(vars(record)) for record in self.records)


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, loggers = Lines(), [logging.getLogger(name) for name in ("", "faststream.access.outbox")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


def found_in(text_: str) -> list[str]:
    return [form for form in FORMS if form in text_]


async def send(postgres: PostgresBackend, broker: OutboxBroker, queue: str) -> None:
    async with postgres.transaction() as session:
        await broker.publish(MARKER, queue=queue, session=session, key=MARKER, headers={"name": MARKER})


def answers(broker: OutboxBroker) -> None:
    @broker.publisher("next")
    @broker.subscriber("orders")
    async def handle(name: str) -> str:
        return name


def answers_in_its_transaction(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(name: str, session: OutboxSession) -> OutboxResponse:
        await session.execute(text("SELECT 1"))
        return OutboxResponse(name, queue="next", session=session, headers={"name": name}, key=name)


def publishes_in_its_transaction(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(name: str, session: OutboxSession) -> None:
        await broker.publish(name, queue="next", session=session, headers={"name": name}, key=name)


def writes_a_name_twice(broker: OutboxBroker) -> None:
    @broker.subscriber("orders")
    async def handle(name: str, session: OutboxSession) -> None:
        for _ in range(2):
            await session.execute(text("INSERT INTO names VALUES (:name)"), {"name": name})


def fails(broker: OutboxBroker) -> None:
    @broker.subscriber("orders", retry_strategy=NoRetry())
    async def handle(name: str) -> None:
        raise LookupError(len(name))


@pytest.mark.parametrize(
    ("handler", "preparation", "event"),
    [
        pytest.param(answers, (REFUSE_NEXT,), "settle_failed", id="the insert of an answer"),
        pytest.param(answers_in_its_transaction, (REFUSE_NEXT,), None, id="an answer in the handler's transaction"),
        pytest.param(publishes_in_its_transaction, (REFUSE_NEXT,), "retry_scheduled", id="a publish in the handler"),
        pytest.param(writes_a_name_twice, UNIQUE_AT_COMMIT, "commit_failed", id="the commit of the handler's rows"),
        pytest.param(fails, (REFUSE_DEAD,), "settle_failed", id="the insert of a dead letter"),
        pytest.param(fails, (NUMBER_OF_PAYLOAD, BEFORE_CLAIM), "claim_failed", id="a claim"),
    ],
)
async def test_a_statement_that_fails_is_logged_without_its_values(
    postgres: PostgresBackend,
    lines: Lines,
    handler: Callable[[OutboxBroker], None],
    preparation: tuple[str, ...],
    event: str | None,
) -> None:
    broker = make_broker(postgres)
    handler(broker)
    for statement in preparation:
        await postgres.run(statement)
    async with running(broker):
        await send(postgres, broker, "orders")
        events = [event] if event else ["commit_failed", "retry_scheduled"]
        await until(lambda: any(lines.of(each) for each in events))
    assert found_in(lines.text) == []


async def test_an_error_of_publishing_shows_no_values(postgres: PostgresBackend) -> None:
    await postgres.run(REFUSE_NEXT)
    with pytest.raises(DBAPIError, match="violates check constraint") as raised:
        await send(postgres, make_broker(postgres), "next")
    shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(raised.value.orig)
    assert found_in(shown) == []
    assert "INSERT INTO" in shown
    code: Any = raised.value.orig
    assert code.sqlstate == "23514"


async def test_the_renderer_of_dead_letters_renders_log_records_too(postgres: PostgresBackend, lines: Lines) -> None:
    broker = make_broker(postgres, last_exception_renderer=lambda error: f"rendered {type(error).__name__}")
    writes_a_name_twice(broker)
    await postgres.run(UNIQUE_AT_COMMIT[0])
    async with running(broker):
        await send(postgres, broker, "orders")
        await until(lambda: lines.of("commit_failed"))
    [record, *_] = lines.of("commit_failed")
    assert record.exc_info is None
    assert record.getMessage().endswith("it was rolled back: IntegrityError\nrendered IntegrityError")
