"""By what a message is known; each broker's message in the shape that FastStream's parsers give it."""

from types import SimpleNamespace
from typing import Any

import pytest
from faststream.message import StreamMessage

from faststream_outbox.inbox.records import GetMessageId, find_message_id


def kafka(**headers: str) -> StreamMessage[Any]:
    raw = SimpleNamespace(topic="orders", partition=3, offset=7, timestamp=1000)
    return StreamMessage(raw, b"", headers=headers, message_id=f"{raw.offset}-{raw.timestamp}")


def rabbit(message_id: str | None = None, **headers: str) -> StreamMessage[Any]:
    return StreamMessage(SimpleNamespace(message_id=message_id), b"", headers=headers, message_id=message_id or "new")


def nats(**headers: str) -> StreamMessage[Any]:
    return StreamMessage(SimpleNamespace(), b"", headers=headers, message_id=headers.get("message_id"))


def redis(**headers: str) -> StreamMessage[Any]:
    raw = {"type": "stream", "message_ids": [b"1-0"], "message_id": "not an id of the sender's"}
    return StreamMessage(raw, b"", headers=headers, message_id=headers.get("message_id", "new"))


@pytest.mark.parametrize("message", [kafka(), rabbit(), nats(), redis(), rabbit(""), nats(message_id="")])
async def test_an_id_that_was_made_up_is_none(message: StreamMessage[Any]) -> None:
    assert message.message_id, "FastStream makes one up"
    with pytest.raises(LookupError, match="no id that stays the same"):
        await find_message_id(message, None)


@pytest.mark.parametrize("make", [kafka, rabbit, nats, redis])
async def test_the_relay_s_header_comes_first_and_then_the_sender_s(make: Any) -> None:
    assert await find_message_id(make(message_id="34", outbox_id="12"), None) == "12"
    sent = make("34") if make is rabbit else make(message_id="34")
    assert await find_message_id(sent, None) == "34"


async def known_by_body(message: StreamMessage[Any]) -> str:
    return message.body.decode()


@pytest.mark.parametrize(
    ("get", "found"),
    [
        (lambda message: f"{message.raw_message.topic}/{message.raw_message.partition}", "orders/3"),
        (lambda _: 42, "42"),
        (known_by_body, "body"),
        (lambda _: None, "12"),
    ],
)
async def test_the_user_s_word_comes_before_both(get: GetMessageId, found: str) -> None:
    message = kafka(outbox_id="12")
    message.body = b"body"
    assert await find_message_id(message, get) == found


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ("", ValueError, "empty"),
        (b"1", TypeError, "a str or an int, not bytes"),
        (True, TypeError, "a str or an int, not bool"),
        ("a\x00", ValueError, "NUL"),
        ("\ud800", ValueError, "surrogate"),
        ("ü" * 513, ValueError, "1026 bytes and the inbox takes 1024"),
    ],
)
async def test_ids_that_cannot_be_stored(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await find_message_id(kafka(), lambda _: value)


@pytest.mark.parametrize("raw", [(1, 2), [1, 2], "with headers"])
async def test_batches_are_refused(raw: Any) -> None:
    headers = [{"outbox_id": "1"}, {"outbox_id": "2"}] if isinstance(raw, str) else None
    message: StreamMessage[Any] = StreamMessage(raw, b"", headers={"outbox_id": "1"}, batch_headers=headers)
    with pytest.raises(RuntimeError, match="this is a batch"):
        await find_message_id(message, None)
