"""The page about the relay as a program, held to the program."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from faststream_outbox.cli.relay import relay
from faststream_outbox.cli.settings import RelaySettings, make_settings

PAGE = (Path(__file__).parents[2] / "docs" / "relay-program.md").read_text()
TOML = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def table(head: str) -> list[list[str]]:
    """The rows of a table of the page, cell by cell."""
    lines = PAGE[PAGE.index(f"\n{head}") :].strip().partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_its_file_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = TOML
    for name in re.findall(r'"env:(\w+)"', text):
        monkeypatch.setenv(name, "top-secret")
    file = tmp_path / "relay.toml"
    file.write_text(text)
    settings = make_settings({}, file)
    assert settings.routes == {"orders": "orders-topic", "events": "header:topic|events"}
    assert settings.to.security["password"] == "top-secret"  # noqa: S105 - of nothing


def test_its_options_exist() -> None:
    options = {name.replace("_", "-") for name in inspect.signature(relay).parameters}
    assert set(re.findall(r"--([a-z]+[a-z-]*)", PAGE)) <= options


def test_its_table_has_every_key_and_its_default() -> None:
    rows = table("| key |")
    told = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert told.keys() == {field.name for field in fields(RelaySettings)}
    for field in fields(RelaySettings):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert f"{field.default:g}" in told[field.name].replace(",", " ").split(), field.name
        elif isinstance(field.default, str):
            assert f"`{field.default}`" in told[field.name], field.name


def test_its_events_are_told_by_the_code() -> None:
    package = Path(__file__).parents[2] / "faststream_outbox"
    code = "".join(file.read_text() for file in package.rglob("*.py"))
    events = re.findall(r"`(\w+)`", "".join(row[0] for row in table("| `event` |")))
    assert len(events) >= 8
    assert [event for event in events if f'"{event}"' not in code] == []
