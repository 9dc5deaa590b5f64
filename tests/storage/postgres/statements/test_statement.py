"""Statements name their parameters; the class numbers them."""

import re
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from faststream_outbox.storage import make_dlq_table, make_outbox_table
from faststream_outbox.storage.postgres import statements as statements_package
from faststream_outbox.storage.postgres.statements import Statements
from faststream_outbox.storage.postgres.statements.statement import Columns, Statement


@pytest.mark.parametrize(
    ("sql", "parameters", "text", "psycopg"),
    [
        ("SELECT 1", (), "SELECT 1", "SELECT 1"),
        ("SELECT :b, :a", ("b", "a"), "SELECT $1, $2", "SELECT %(b)b, %(a)b"),
        ("SELECT :a, :b, :a", ("a", "b"), "SELECT $1, $2, $1", "SELECT %(a)b, %(b)b, %(a)b"),
        ("SELECT :a::text::jsonb", ("a",), "SELECT $1::text::jsonb", "SELECT %(a)b::text::jsonb"),
        ("SELECT now()::text", (), "SELECT now()::text", "SELECT now()::text"),
        ("SELECT :a::bigint[]", ("a",), "SELECT $1::bigint[]", "SELECT %(a)b::bigint[]"),
        ('SELECT "we:ird$1%" = :a', ("a",), 'SELECT "we:ird$1%" = $1', 'SELECT "we:ird$1%%" = %(a)b'),
        ('SELECT "a"":b" = :a', ("a",), 'SELECT "a"":b" = $1', 'SELECT "a"":b" = %(a)b'),
        ("SELECT ':a' || :a", ("a",), "SELECT ':a' || $1", "SELECT ':a' || %(a)b"),
        ("SELECT 'it''s :a' || :b", ("b",), "SELECT 'it''s :a' || $1", "SELECT 'it''s :a' || %(b)b"),
        ("SELECT h ->> 'y', :a % 2", ("a",), "SELECT h ->> 'y', $1 % 2", "SELECT h ->> 'y', %(a)b %% 2"),
        ("f(secs => :name_2::float8)", ("name_2",), "f(secs => $1::float8)", "f(secs => %(name_2)b::float8)"),
    ],
)
def test_parameters(sql: str, parameters: tuple[str, ...], text: str, psycopg: str) -> None:
    statement = Statement(sql)
    assert statement.parameters == parameters
    assert statement.text == text
    assert statement.psycopg == psycopg
    assert statement.pyformat == re.sub(r"\)b", ")s", psycopg)


@pytest.mark.parametrize(
    ("sql", "values", "bound"),
    [
        ("SELECT 1", {}, ()),
        ("SELECT :a", {"a": 1}, (1,)),
        ("SELECT :b, :a, :b", {"a": 1, "b": None}, (None, 1)),
    ],
)
def test_values_are_bound_by_name(sql: str, values: dict[str, object], bound: tuple[object, ...]) -> None:
    assert Statement(sql).bind(values) == bound


@pytest.mark.parametrize(
    ("sql", "values", "named"),
    [
        ("SELECT :a, :b", {"a": 1}, "missing: b; unknown: none"),
        ("SELECT :a", {}, "missing: a; unknown: none"),
        ("SELECT :a", {"a": 1, "c": 2}, "missing: none; unknown: c"),
        ("SELECT 1", {"c": 2}, "takes the parameters (none); missing: none; unknown: c"),
        ("SELECT :a, :b", {"a": 1, "c": 2}, "missing: b; unknown: c"),
    ],
)
def test_a_missing_or_unknown_name_raises(sql: str, values: dict[str, object], named: str) -> None:
    with pytest.raises(TypeError, match=re.escape(named)):
        Statement(sql).bind(values)


def test_columns_are_arrays_that_a_statement_unnests() -> None:
    columns = Columns("row", id="bigint", name="text")
    assert columns.unnest("r") == "unnest(:row_id::bigint[], :row_name::text[]) AS r(id, name)"
    assert columns.unnest("r", "name") == "unnest(:row_name::text[]) AS r(name)"
    assert columns.unnest("r", numbered=True).endswith(" WITH ORDINALITY AS r(id, name, n)")
    assert columns["id"] == ":row_id::bigint[]"
    assert columns.fill([(1, "a"), (2, "b")]) == {"row_id": [1, 2], "row_name": ["a", "b"]}
    assert columns.fill([]) == {"row_id": [], "row_name": []}
    with pytest.raises(ValueError, match="argument"):
        columns.fill([(1, "a", "too many")])


def test_no_statement_numbers_its_parameters_by_hand() -> None:
    """Neither in what the classes hold, nor anywhere in the package's sources."""
    metadata = MetaData()
    statements = Statements(make_outbox_table(metadata), make_dlq_table(metadata))
    held = [each for group in vars(statements).values() for each in vars(group).values() if isinstance(each, Statement)]
    assert len(held) > 30
    assert not [each.sql for each in held if re.search(r"\$\d", each.sql)]
    folder = Path(statements_package.__file__).parents[1]
    sources = {path: path.read_text() for path in folder.rglob("*.py") if path.name != "statement.py"}
    assert len(sources) > 10
    assert not [path for path, source in sources.items() if re.search(r"\$\d", source)]
