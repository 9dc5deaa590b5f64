"""The log of the program outside a terminal."""

import json
import logging

import pytest

from faststream_outbox.cli import secrets
from faststream_outbox.cli.relay.logs import JsonFormatter, RepeatFilter, TextFormatter
from tests.cli.relay.relay_setup import RelaySetup
from tests.cli.relay.rows import publish
from tests.waiting import until


async def test_progress_is_logged_when_something_happened(setup: RelaySetup) -> None:
    with setup.relaying("--progress-interval", "0.05") as program:
        await program.wait_for_answer("/health/ready", 200)
        await publish(setup.outbox, range(30))
        await setup.stream.numbers(30)
        lines = await until(
            lambda: program.lines("relay_progress"), lambda found: bool(found) and found[-1]["relayed"] == 30
        )
        line = lines[-1]
        assert (line["level"], line["state"]) == ("INFO", "running")
        assert line["queues"]["orders"]["relayed"] == 30
        assert await program.stop() == 0, program.output
        logged = [(each["relayed"], each.get("lag_seconds")) for each in program.lines("relay_progress")]
        # No line twice, and no line before something had happened.
        assert len(logged) == len(set(logged) - {(0, None)})


async def test_a_refused_message_is_logged_with_its_row(setup: RelaySetup) -> None:
    await setup.stream.replace_by_text()
    await publish(setup.outbox, [7])
    [row] = await setup.outbox.rows()
    with setup.relaying("--dlq-table", "outbox_dlq") as program:
        line = await program.wait_for_line("dead_lettered")
        assert (line["row_id"], line["queue"], line["reason"], line["kept"]) == (row.id, "orders", "rejected", True)
        _, status = await program.get("/status")
        assert (status["relayed"], status["refused"]) == (0, 1)
        assert await program.stop() == 0, program.output
    [letter] = await setup.outbox.dead_letters()
    assert (letter.original_id, letter.payload) == (row.id, b"7")


def test_libraries_do_not_repeat_themselves() -> None:
    now = 0.0
    repeats = RepeatFilter(lambda: now)

    def passes(name: str, message: str) -> bool:
        return repeats.filter(logging.makeLogRecord({"name": name, "msg": message}))

    assert passes("aiokafka", "Unable connect to node with id 1")
    assert not passes("aiokafka", "Unable connect to node with id 2")
    assert passes("aiokafka", "Unable to update metadata from [1]")
    assert passes("other", "Unable connect to node with id 1")
    assert [passes("faststream_outbox.relay", "The broker is down") for _ in range(2)] == [True, True]
    now = 61.0
    assert passes("aiokafka", "Unable connect to node with id 1")


@pytest.fixture
def record() -> logging.LogRecord:
    error = OSError("amqp://relay:pass@host does not answer, nor does top-secret")
    failure = (type(error), error, None)
    extra = {"event": "relay_paused", "row_id": 5, "where": "amqp://relay:pass@host"}
    extra["nested"] = {"relay:pass@h": ("amqp://relay:pa/ss@host", {"deep": "top-secret"}, 5, None)}
    message = "amqp://relay:pass@host/ with %s"
    return logging.getLogger("x").makeRecord("x", 30, "f", 1, message, ("top-secret",), failure, extra=extra)


def test_json_has_all_fields_and_no_password(record: logging.LogRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_secrets", {"top-secret": "***"})
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["event"], line["row_id"]) == ("WARNING", "relay_paused", 5)
    assert line["message"] == "amqp://relay:***@host/ with ***"
    assert line["where"] == "amqp://relay:***@host"
    assert line["nested"] == {"***@h": ["amqp://relay:***@host", {"deep": "***"}, 5, None]}
    assert line["exception"].endswith("OSError: amqp://relay:***@host does not answer, nor does ***")


def test_text_has_a_traceback_only_at_level_debug(record: logging.LogRecord) -> None:
    plain, debugging = TextFormatter(tracebacks=False), TextFormatter(tracebacks=True)
    assert plain.format(record).endswith(" WARNING amqp://relay:***@host/ with top-secret")
    assert "OSError" in debugging.format(record)
    assert "OSError" not in plain.format(record)
