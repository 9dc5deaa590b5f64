"""Every Python block of the documentation is run, page by page, as a reader would type it."""

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from faststream_outbox.embedded import Database

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TITLED = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
URL = "postgresql+asyncpg://localhost/app"
NOWHERE = "postgresql+asyncpg://localhost:1/nowhere"


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def runs_in_main(page: Path) -> bool:
    """Return whether the page says, before its first block, to put the code into one function."""
    before_the_first_block = " ".join(page.read_text().partition("```python\n")[0].split())
    return bool(re.search(r"into (one|an) `async def main\(\):`, and call `asyncio.run", before_the_first_block))


IN_MAIN = [page for page in PAGES if runs_in_main(page)]


def test_there_is_something_to_run() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 10


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
async def test_page(page: Path, outbox_postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    # Where a test asks for a database, the engine of the page is that of production, and nothing may touch it.
    url = NOWHERE if any("(outbox_postgres" in block for block in blocks(page)) else outbox_postgres.url("asyncpg")
    for number, block in enumerate(blocks(page), start=1):
        source = block.replace(URL, url)
        file = tmp_path / f"{page.stem}_block_{number}.py"
        file.write_text(source)  # FastStream's test brokers read the code that uses them
        code = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await run(code, namespace)
    for name, test in [item for item in namespace.items() if item[0].startswith("test_")]:
        if "pytest" in namespace:
            break  # pytest runs them, below
        assert inspect.iscoroutinefunction(test), name
        await (test(outbox_postgres) if inspect.signature(test).parameters else test())
    if "engine" in namespace:
        await namespace["engine"].dispose()
    capsys.readouterr()


@pytest.mark.parametrize("page", IN_MAIN, ids=lambda page: page.name)
def test_page_in_one_function(page: Path, outbox_postgres: Database, tmp_path: Path) -> None:
    body = textwrap.indent("\n\n".join(blocks(page)), "    ").replace(URL, outbox_postgres.url("asyncpg"))
    file = tmp_path / "program.py"
    file.write_text(f"import asyncio\n\n\nasync def main():\n{body}\n\nasyncio.run(main())\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(file)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["testing.md", "fastapi.md"])
def test_the_tests_of_a_page_are_tests_for_pytest(name: str, tmp_path: Path) -> None:
    source = "\n\n".join(blocks(ROOT / "docs" / name)).replace(URL, NOWHERE)
    files = dict(TITLED.findall((ROOT / "docs" / "testing.md").read_text()))
    (tmp_path / "conftest.py").write_text(files["conftest.py"])
    (tmp_path / "test_page.py").write_text(source)
    (tmp_path / "pytest.ini").write_text(f"{files['pytest.ini']}filterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "test_page.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(re.findall(r'^async def test_', source, re.MULTILINE))} passed" in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_an_await_outside_a_function_means(page: Path) -> None:
    def is_a_file(block: str) -> bool:
        try:
            compile(block, page, "exec")
        except SyntaxError:
            return False
        return True

    assert (page in IN_MAIN) is not all(map(is_a_file, blocks(page)))


async def run(code: CodeType, namespace: dict[str, Any]) -> None:
    result = eval(code, namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        await result


@pytest.mark.parametrize(
    "page", sorted({*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")}), ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
