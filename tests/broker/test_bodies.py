"""Bodies are read by what is fastest, and come out as FastStream would have read them."""

import json
from random import Random
from typing import Any

import pytest

from faststream_outbox._faststream import json_loads
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.parser import OutboxParser, open_message

_LETTERS = 'abc 019"\\/\n\t\x00é漢\U0001f600\u2028'
_MISTAKES = b'0123456789.eE+-"\\[]{},: \t\nNaInfityu\xff\xc3\xa9\x00'
_ODD = [
    *(b"NaN", b"-Infinity", b"1e400", b"-0", b"-0.0", b"12345678901234567890123", b"4.9e-324", b'{"a":1,"a":2}'),
    *(b"", b" 1 ", b"01", b"[1,]", b"tru", b"+1", b".5", b"1.", b'"\x01"', b'"\\ud800"', b"\xef\xbb\xbf1", b"\xff"),
    *('"für"'.encode("utf-16"), '"für"'.encode("latin-1"), b"[" * 300 + b"]" * 300),
]


async def read(body: bytes) -> Any:
    """Decode a body as that of a message; what is raised is told, not raised."""
    headers = '{"content-type": "application/json"}'
    row = OutboxDelivery(1, "q", None, body, headers, None, 0.0, 0.0, None, None, 0.0, 0, 1, None, None)
    try:
        return repr(await OutboxParser.decode_message(open_message(row)))
    except ValueError as error:
        return repr(error)


def expected(body: bytes) -> Any:
    """Tell what FastStream makes of it; a float that differs in its last digit is another one."""
    try:
        return repr(json_loads(body))
    except ValueError as error:
        return repr(error)


@pytest.mark.parametrize("body", _ODD, ids=lambda body: repr(body[:12]))
async def test_odd_bodies_are_read_as_ever(body: bytes) -> None:
    assert await read(body) == expected(body)


async def test_bodies_are_read_as_ever() -> None:
    rng = Random(1)
    for _ in range(3_000):
        body = json.dumps(_document(rng), ensure_ascii=rng.random() < 0.5).encode()
        assert await read(body) == expected(body), body


async def test_broken_bodies_are_refused_as_ever() -> None:
    rng = Random(2)
    refused = 0
    for _ in range(10_000):
        body = bytearray(json.dumps(_document(rng)).encode())
        for _ in range(rng.randint(1, 2)):
            body[rng.randrange(len(body))] = rng.choice(_MISTAKES)
        expects = expected(bytes(body))
        assert await read(bytes(body)) == expects, bytes(body)
        refused += "Error(" in expects
    assert refused > 1_000


def _document(rng: Random, depth: int = 0) -> Any:
    match rng.randint(0, 7 if depth < 4 else 5):
        case 0:
            return rng.choice([None, True, False])
        case 1:
            return rng.randint(-(10 ** rng.randint(0, 30)), 10 ** rng.randint(0, 30))
        case 2:
            return rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300)
        case 3 | 4 | 5:
            return "".join(rng.choices(_LETTERS, k=rng.randint(0, 20)))
        case 6:
            return [_document(rng, depth + 1) for _ in range(rng.randint(0, 5))]
        case _:
            return {str(_document(rng, 9)): _document(rng, depth + 1) for _ in range(rng.randint(0, 5))}
