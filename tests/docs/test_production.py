"""The checklist of production: its SQL runs, its commands exist, its example of sizing is what the command prints."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine
from typer.main import get_command

from benchmarks import sizing
from faststream_outbox import make_dlq_table, make_outbox_table
from faststream_outbox.cli.commands import app
from faststream_outbox.embedded import Database

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "production.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| what")
]
COMMANDS = re.findall(r"`([^`]+ [^`]+)`", "\n".join(row[2] for row in ROWS))
QUERIES = [command for command in COMMANDS if command.startswith("SELECT ")]
PROGRAMS = {"python", "faststream-outbox", "kubectl", "curl", "make"}


def test_every_line_says_what_why_and_how_to_check_it() -> None:
    assert len(ROWS) >= 25
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


async def test_its_queries_run(outbox_postgres: Database) -> None:
    metadata = MetaData()
    make_outbox_table(metadata)
    make_dlq_table(metadata)
    engine = create_async_engine(outbox_postgres.url("asyncpg"))
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
        assert len(QUERIES) >= 10
        for query in QUERIES:
            (await connection.execute(text(query))).all()
    await engine.dispose()


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("SELECT ")])
def test_its_commands_exist(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program in PROGRAMS
    match program, arguments:
        case "python", ["-m", module, *_]:
            folder = ROOT / "examples" / "production" if module.startswith("shop.") else ROOT
            assert (folder / f"{module.replace('.', '/')}.py").exists()
        case "python", ["-c", code]:
            for module in re.findall(r"[\w.]+\.\w+", code):
                assert find_spec(module)
        case "faststream-outbox", [*words]:
            named = get_command(app)
            while words and not words[0].startswith("--"):
                named = named.commands[words.pop(0)]  # type: ignore[attr-defined]
            known = {name for parameter in named.params for name in parameter.opts} | {"--help"}
            assert {word for word in words if word.startswith("--")} <= known
        case "make", [target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        case "kubectl", [*words]:
            deployed = re.findall(r"(?:deploy/|deployment/|app=|deploy )(\w+)", " ".join(words))
            manifests = ROOT / "examples" / "production" / "kubernetes"
            assert [name for name in deployed if not (manifests / f"{name}.yaml").exists()] == []


def test_the_example_of_sizing_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    [command] = re.findall(r"^python -m benchmarks\.sizing (.+)$", PAGE, re.MULTILINE)
    [shown] = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert sizing.main(shlex.split(command)) == 0
    assert shown == capsys.readouterr().out


def test_sizes_follow_from_the_tables() -> None:
    page = """
<!-- table: what a message costs -->

|  | Postgres µs | WAL B | Python µs |
| --- | ---: | ---: | ---: |
| a message in it | 80.0 (70…90) | 600 | 200 |
| a message claimed and settled | 20.0 | 400 (1…2) | 1,000 |

<!-- end of table -->

<!-- table: what a backlog takes on disk -->

|  | bytes a row | 1 M rows, GB |
| --- | ---: | ---: |
| payloads of 256 bytes, without keys | 1,000 | 1 |
| payloads of 1,000 bytes, without keys | 2,500 | 2 |
| payloads of 256 bytes, with keys | 9 | 9 |

<!-- end of table -->
"""
    load = sizing.Load(1000.0, 257, keys=False, outage_hours=2.0, cores=4, workers=3, subscribers=2)
    sizes = sizing.sizes_for(load, page)
    # 1,000 a second at 100 µs are a tenth of a core; 1,001 bytes of WAL each; 7.2 million rows of 2,500 bytes.
    assert sizes["processors of Postgres"] == "2% of 4 cores"
    assert sizes["WAL"] == "1.0 MB a second, 86 GB a day at this rate"
    assert sizes["cores of workers"] == "1.00, and what your handlers need"
    assert sizes["disk for an outage"] == "18.0 GB for 2 hours"
    assert sizes["connections"] == "18, and 6 for each worker that a rollout adds meanwhile"
    with pytest.raises(SystemExit, match="not measured"):
        sizing.sizes_for(sizing.Load(1.0, 5000, keys=False, outage_hours=1, cores=1, workers=1, subscribers=1), page)
