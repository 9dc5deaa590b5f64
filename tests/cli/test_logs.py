"""What the program logs where nobody watches."""

import json
import logging

import pytest

from faststream_outbox.cli import errors
from faststream_outbox.cli.logs import JsonFormatter, RepeatFilter, TextFormatter
from tests.cli.relay_setup import World
from tests.cli.rows import publish


async def test_progress_is_told_when_something_happened(world: World) -> None:
    with world.relaying("--progress-interval", "0.05") as program:
        await program.until("/health/ready", 200)
        await publish(world.outbox, range(30))
        await world.stream.numbers(30)
        line = await program.heard("relay_progress")
        while line["relayed"] < 30:
            line = program.lines("relay_progress")[-1]
        assert (line["level"], line["state"]) == ("INFO", "running")
        assert line["queues"]["orders"]["relayed"] == 30
        assert await program.stop() == 0, program.said
        told = [(each["relayed"], each.get("lag_seconds")) for each in program.lines("relay_progress")]
        # Never the same twice, and nothing before anything had happened.
        assert len(told) == len(set(told) - {(0, None)})


async def test_a_refused_message_is_told_with_its_row(world: World) -> None:
    await world.stream.spoil()
    await publish(world.outbox, [7])
    [row] = await world.outbox.rows()
    with world.relaying("--dlq-table", "outbox_dlq") as program:
        line = await program.heard("dead_lettered")
        assert (line["row_id"], line["queue"], line["reason"], line["kept"]) == (row.id, "orders", "rejected", True)
        _, status = await program.get("/status")
        assert (status["relayed"], status["refused"]) == (0, 1)
        assert await program.stop() == 0, program.said
    [letter] = await world.outbox.dead_letters()
    assert (letter.original_id, letter.payload) == (row.id, b"7")


def test_libraries_do_not_repeat_themselves() -> None:
    now = 0.0
    repeats = RepeatFilter(lambda: now)

    def said(name: str, message: str) -> bool:
        return repeats.filter(logging.makeLogRecord({"name": name, "msg": message}))

    assert said("aiokafka", "Unable connect to node with id 1")
    assert not said("aiokafka", "Unable connect to node with id 2")
    assert said("aiokafka", "Unable to update metadata from [1]")
    assert said("other", "Unable connect to node with id 1")
    assert [said("faststream_outbox.relay", "The broker is down") for _ in range(2)] == [True, True]
    now = 61.0
    assert said("aiokafka", "Unable connect to node with id 1")


@pytest.fixture
def record() -> logging.LogRecord:
    error = OSError("amqp://relay:pass@host does not answer, nor does top-secret")
    failure = (type(error), error, None)
    extra = {"event": "relay_paused", "row_id": 5, "where": "amqp://relay:pass@host"}
    message = "amqp://relay:pass@host/ with %s"
    return logging.getLogger("x").makeRecord("x", 30, "f", 1, message, ("top-secret",), failure, extra=extra)


def test_json_has_what_is_known_and_no_password(record: logging.LogRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_secrets", {"top-secret"})
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["event"], line["row_id"]) == ("WARNING", "relay_paused", 5)
    assert line["message"] == "amqp://relay:***@host/ with ***"
    assert line["where"] == "amqp://relay:***@host"
    assert line["exception"].endswith("OSError: amqp://relay:***@host does not answer, nor does ***")


def test_text_has_a_traceback_only_for_who_debugs(record: logging.LogRecord) -> None:
    plain, debugging = TextFormatter(tracebacks=False), TextFormatter(tracebacks=True)
    assert plain.format(record).endswith(" WARNING amqp://relay:***@host/ with top-secret")
    assert "OSError" in debugging.format(record)
    assert "OSError" not in plain.format(record)
