"""The quickstart as printed: its files are written into an empty directory, and its commands are run there."""

import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.docs.tutorial.terminal import Terminal

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
FILES = dict(re.findall(r'^```python title="([\w.]+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE))
SHELL = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
DEMO, INSTALL, POSTGRES, BEGIN, SERVE, PUBLISH, TEST = SHELL


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with the environment that the page installs, and the three files; the server's account may enter."""
    home = Path(tempfile.mkdtemp(prefix="outbox-quickstart-"))
    home.chmod(0o755)
    (home / "quickstart").mkdir()
    (home / "quickstart" / ".venv").symlink_to(sys.prefix)
    for name, text in FILES.items():
        (home / "quickstart" / name).write_text(text)
    yield home
    shutil.rmtree(home)


@pytest.fixture
def terminals(home: Path) -> Iterator[dict[str, Terminal]]:
    """Three terminals; the environment is active in the first, as it is after the installation."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(closing(Terminal(name, home))) for name in ("postgres", "service", "own")}
        activate = INSTALL.splitlines()[1]
        assert activate == ". ~/quickstart/.venv/bin/activate"
        found["postgres"].run(activate)
        yield found


def test_it_can_be_followed(terminals: dict[str, Terminal]) -> None:
    postgres, service, own = terminals.values()
    postgres.type(POSTGRES)
    postgres.wait_for(["postgresql://…", "postgresql+asyncpg://…"])
    service.run(BEGIN)
    own.run(BEGIN)
    service.type(SERVE)
    service.wait_for(["…FastStream app started successfully…"])
    assert own.run(PUBLISH) == "placed order 1\n"
    service.wait_for(["packing order 1"])
    service.interrupt()
    assert own.run(PUBLISH) == "placed order 2\n"
    service.type(SERVE)
    service.wait_for(["packing order 2"])
    service.interrupt()
    assert "Traceback" not in service.output
    postgres.interrupt()


def test_its_test_needs_no_database(terminals: dict[str, Terminal]) -> None:
    terminals["own"].run(BEGIN.replace("$(tail -n 1 postgres.txt)", "postgresql+asyncpg://localhost:1/nowhere"))
    assert "1 passed" in terminals["own"].run(TEST)


def test_what_it_installs_is_there_to_be_installed() -> None:
    [extras] = re.findall(r"^pip install '\.\[([\w,]+)\]' pytest pytest-asyncio$", INSTALL, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_every_block_is_a_file() -> None:
    assert set(FILES) == {"service.py", "publish.py", "test_service.py"}
    assert "```python\n" not in PAGE
