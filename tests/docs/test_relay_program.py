"""The page about the relay as a program, held to the program."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo
from typer.main import get_command

from faststream_outbox.cli.commands import app
from faststream_outbox.cli.relay.settings import RelaySettings
from faststream_outbox.cli.settings import keys_of

PAGE = (Path(__file__).parents[2] / "docs" / "relay-program.md").read_text()
TOML = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def table(head: str) -> list[list[str]]:
    """The rows of a table of the page, cell by cell."""
    lines = PAGE[PAGE.index(f"\n{head}") :].strip().partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_its_file_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [text] = TOML
    for name in re.findall(r'"env:(\w+)"', text):
        monkeypatch.setenv(name, "postgresql://h/d" if name == "SHOP_DATABASE" else "top-secret")
    file = tmp_path / "relay.toml"
    file.write_text(text)
    settings = RelaySettings.load({}, file)
    assert settings.routes == {"orders": "orders-topic", "events": "header:topic|events"}
    assert settings.to.read_password() == "top-secret"


def test_its_options_exist() -> None:
    program: Any = get_command(app)
    options = {name.removeprefix("--") for option in program.commands["relay"].params for name in option.opts}
    assert set(re.findall(r"--([a-z]+[a-z-]*)", PAGE)) <= options


def test_its_table_has_every_key_with_its_default_and_its_description() -> None:
    documented = [[cell.replace("`", "") for cell in row] for row in table("| key |")]
    defined = [
        [key, default(field), str(field.description)]
        for key, field in zip(keys_of(RelaySettings), RelaySettings.model_fields.values(), strict=True)
    ]
    assert sorted(documented) == sorted(defined)


def default(field: FieldInfo) -> str:
    match field.default:
        case bool() as value:
            return str(value).lower()
        case int() | float() as value:
            return f"{value:g}"
        case str() as value:
            return value
    return ""


def test_its_events_are_in_the_code() -> None:
    package = Path(__file__).parents[2] / "faststream_outbox"
    code = "".join(file.read_text() for file in package.rglob("*.py"))
    events = re.findall(r"`(\w+)`", "".join(row[0] for row in table("| `event` |")))
    assert len(events) >= 8
    assert [event for event in events if f'"{event}"' not in code] == []
