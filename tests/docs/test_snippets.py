"""Every Python block of the documentation is run, page by page, as a reader would type it."""

import ast
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from faststream_outbox.embedded import Database

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
URL = "postgresql+asyncpg://localhost/app"


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def test_there_is_something_to_run() -> None:
    assert sum(len(blocks(page)) for page in PAGES) >= 10


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
async def test_page(page: Path, outbox_postgres: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {}
    for number, block in enumerate(blocks(page), start=1):
        source = block.replace(URL, outbox_postgres.url("asyncpg"))
        file = tmp_path / f"{page.stem}_block_{number}.py"
        file.write_text(source)  # FastStream's test brokers read the code that uses them
        code = compile(source, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await run(code, namespace)
    for name, test in [item for item in namespace.items() if item[0].startswith("test_")]:
        assert inspect.iscoroutinefunction(test), name
        await (test(outbox_postgres) if inspect.signature(test).parameters else test())
    if "engine" in namespace:
        await namespace["engine"].dispose()
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_an_await_outside_a_function_means(page: Path) -> None:
    def is_a_file(block: str) -> bool:
        try:
            compile(block, page, "exec")
        except SyntaxError:
            return False
        return True

    before_the_first_block = page.read_text().partition("```python\n")[0]
    said = "inside an async function of yours" in " ".join(before_the_first_block.split())
    assert said is not all(map(is_a_file, blocks(page)))


async def run(code: CodeType, namespace: dict[str, Any]) -> None:
    result = eval(code, namespace)  # noqa: S307 - our own documentation
    if inspect.iscoroutine(result):
        await result


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
