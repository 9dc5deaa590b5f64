"""The body of a message: decoded when it is read, and indented without a change of its values."""

import json
from typing import Any

import pytest

from faststream_outbox.operations import Body
from faststream_outbox.operations.bodies import MOST_INDENTED

VALUES: list[Any] = [
    {"a": [1, 2, {"b": None}], "c": {}, "d": [[], [{}]]},
    [],
    [[[]]],
    [True, "a,b:{}[]", {"quoted": 'a "word" \\ and \n'}],
    {"name": "Zoë"},
]


def body(text: str, content_type: str | None = None) -> Body:
    return Body.of(text.encode(), content_type)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("options", [{}, {"separators": (",", ":")}, {"indent": 7}, {"ensure_ascii": False}])
def test_json_is_indented_as_python_does_it(value: Any, options: dict[str, Any]) -> None:
    assert body(json.dumps(value, **options)).pretty() == json.dumps(value, indent=2, ensure_ascii=False)


@pytest.mark.parametrize(
    "value", ["12345678901234567.89", "1.0000000000000000001", "0.10", "1e400", "-0", "1E5", '"\\ud800"', '"\\u0000"']
)
def test_a_value_is_shown_as_it_was_written(value: str) -> None:
    assert body(f'{{"n": {value}}}').pretty() == f'{{\n  "n": {value}\n}}'
    assert body(value).pretty() == value


def test_a_name_that_comes_twice_is_shown_twice() -> None:
    assert body('{"a": 1, "a": 2}').pretty() == '{\n  "a": 1,\n  "a": 2\n}'


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"a": 1', id="no JSON"),
        pytest.param(json.dumps([1] * MOST_INDENTED), id="too large"),
        pytest.param("[" * 60 + "]" * 60, id="too deep"),
    ],
)
def test_what_is_not_indented_is_shown_as_it_is(text: str) -> None:
    assert body(text).pretty() == text


def test_a_large_body_is_not_parsed_to_show_it() -> None:
    large = body(json.dumps([1] * MOST_INDENTED))
    large.pretty()
    assert "data" not in vars(large)
    assert len(large.data) == MOST_INDENTED


@pytest.mark.parametrize(
    ("raw", "content_type", "data"),
    [
        pytest.param(b'{"a": 1}', "application/json", {"a": 1}, id="JSON"),
        pytest.param(b'{"a": 1}', None, {"a": 1}, id="JSON without a type"),
        pytest.param(b"1", "text/plain", "1", id="a text"),
        pytest.param(b"plain", None, b"plain", id="no JSON, no type"),
        pytest.param(b"plain", "application/json", "plain", id="no JSON"),
        pytest.param(b"\xff", "application/json", b"\xff", id="bytes"),
    ],
)
def test_a_body_is_decoded_as_its_content_type_says(raw: bytes, content_type: str | None, data: Any) -> None:
    assert Body.of(raw, content_type).data == data
