"""The access log."""

import logging

import pytest
from faststream import FastStream

from tests.faststream.environments import Inbox, PostgresWorld


async def test_the_access_log_has_queue_and_message_id(
    real: PostgresWorld, inbox: Inbox, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = real.broker()

    @broker.subscriber(["orders", "a queue with a longer name"])
    async def handle(body: str) -> None:
        inbox.put(body)

    with caplog.at_level(logging.INFO, "faststream.access.outbox"):
        async with real.running(broker):
            row_id = await real.publish(broker.publish, "a", queue="orders")
            await inbox.next()
            await real.drained()
    received = [each for each in caplog.records if each.getMessage() in ("Received", "Processed")]
    assert [(each.queue, each.message_id) for each in received] == [("orders", str(row_id))] * 2  # type: ignore[attr-defined] # of the extra
    assert f"orders                            | {row_id}" in capsys.readouterr().out


async def test_an_error_is_logged_with_its_traceback(
    real: PostgresWorld, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    broker = real.broker()

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)
        raise ValueError("of the handler")

    with caplog.at_level(logging.ERROR, "faststream.access.outbox"):
        async with real.running(broker):
            await real.publish(broker.publish, "a", queue="orders")
            await inbox.next()
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "of the handler" in str(record.exc_info[1])
    assert record.queue == "orders"  # type: ignore[attr-defined] # of the extra


@pytest.mark.parametrize("own", [True, False])
async def test_another_logger_or_none(
    real: PostgresWorld,
    inbox: Inbox,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    own: bool,
) -> None:
    logger = logging.getLogger("tests.faststream.own") if own else None
    broker = real.broker(logger=logger, log_level=logging.WARNING)
    FastStream(broker, logger=None)

    @broker.subscriber("orders")
    async def handle(body: str) -> None:
        inbox.put(body)

    with caplog.at_level(logging.DEBUG):
        async with real.running(broker):
            await real.publish(broker.publish, "a", queue="orders")
            await inbox.next()
            await real.drained()
    assert {each.name for each in caplog.records if each.name != "asyncio"} == ({logger.name} if logger else set())
    assert capsys.readouterr().out == ""
