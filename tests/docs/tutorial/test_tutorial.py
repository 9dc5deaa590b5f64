"""The tutorial can be followed, word by word."""

import difflib
import re
import shutil
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.docs.test_words import HARD_WORDS
from tests.docs.tutorial.pages import FOLDER, ROOT, Block, blocks, pages
from tests.docs.tutorial.terminal import Terminal, matches
from tests.servers.kafka import Kafka, KafkaCluster, KafkaElsewhere
from tests.servers.plugin import Servers
from tests.servers.process import free_port

INSTALLATION = "What you need"
REAL_KAFKA = "With a real Kafka"
SECONDS = 60.0


class Reader:
    """Follows the tutorial in a home directory of its own."""

    def __init__(self, home: Path, replacements: dict[str, str]) -> None:
        self._home = home
        self._replacements = replacements
        self._own = Terminal("", home)
        self._terminals = {"": self._own}
        self._asked: Block | None = None

    def follow(self, block: Block) -> None:
        """Write a file, run a command, or compare what was printed."""
        text = self._replaced(block.text)
        if block.is_file:
            (self._home / "orders" / block.title).write_text(text)
        elif block.is_command and block.terminal:
            if block.terminal not in self._terminals:
                self._terminals[block.terminal] = Terminal(block.terminal, self._home)
            self._terminals[block.terminal].interrupt()
            self._terminals[block.terminal].type(text)
        elif block.is_command:
            self._asked = block
            self._answer = self._own.run(text)
        elif block.terminal:
            self._terminals[block.terminal].wait_for(text.splitlines())
        else:
            self._compare(text)

    def stop(self) -> None:
        """Press Ctrl-C in each terminal, the last one first."""
        for terminal in reversed(self._terminals.values()):
            terminal.interrupt()

    def close(self) -> None:
        for terminal in self._terminals.values():
            terminal.close()

    def _compare(self, expected: str) -> None:
        assert self._asked is not None
        deadline = time.monotonic() + SECONDS
        while not matches(expected, self._answer) and self._asked.only_reads and time.monotonic() < deadline:
            self._answer = self._own.run(self._replaced(self._asked.text))
        assert matches(expected, self._answer), (
            f"{self._asked.page}: {self._asked.text}prints\n{self._answer}\nand not\n{expected}"
        )

    def _replaced(self, text: str) -> str:
        for printed, here in self._replacements.items():
            text = text.replace(printed, here)
        return text


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with the environment that the first page installs."""
    home = Path(tempfile.mkdtemp(prefix="outbox-tutorial-"))
    home.chmod(0o755)  # the account of the server may enter
    (home / "orders").mkdir()
    (home / "orders" / ".venv").symlink_to(sys.prefix)
    yield home
    shutil.rmtree(home)


@pytest.fixture
async def real_kafka(servers: Servers, request: pytest.FixtureRequest) -> KafkaCluster | None:
    """A real Kafka, where there is one."""
    return KafkaElsewhere.given() or (None if Kafka.lacks() else await servers.up(Kafka, request))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial sends its requests by curl")
@pytest.mark.timeout(600)  # a dozen programs start one after the other
def test_it_can_be_followed(home: Path, real_kafka: KafkaCluster | None) -> None:
    replacements = {"8000": str(free_port()), "shop-events": f"shop-events-{uuid.uuid4().hex}"}
    left_out = {INSTALLATION}
    if real_kafka is None:
        left_out.add(REAL_KAFKA)
    else:
        replacements["127.0.0.1:9092"] = real_kafka.bootstrap_servers
    reader = Reader(home, replacements)
    try:
        for block in blocks():
            if block.section not in left_out:
                reader.follow(block)
        reader.stop()
    finally:
        reader.close()


def test_every_page_is_part_of_it() -> None:
    assert sorted(page.name for page in pages()) == sorted(page.name for page in FOLDER.iterdir())


def test_every_block_is_a_file_a_command_or_an_output() -> None:
    for block in blocks():
        assert block.is_file or block.is_command or block.is_output, f"{block.page}: {block.text}"
    fences = sum(page.read_text().count("```") for page in pages())
    assert fences == 2 * len(blocks())
    assert {INSTALLATION, REAL_KAFKA} <= {block.section for block in blocks()}


def test_every_command_that_ends_is_followed_by_what_it_prints() -> None:
    steps = [block for block in blocks() if not block.is_file and block.section != INSTALLATION]
    silent = {"alembic init -t async migrations\n", "echo 127.0.0.1:9092 > kafka.txt\n"}
    for step, after in pairwise(steps):
        if step.is_command and not step.terminal and step.text not in silent:
            assert after.is_output, f"{step.page}: {step.text}"
            assert not after.terminal, f"{step.page}: {step.text}"


def test_the_marked_lines_of_a_file_are_those_that_changed() -> None:
    written: dict[str, str] = {}
    for block in [block for block in blocks() if block.is_file]:
        if before := written.get(block.title):
            assert block.marked == changed(before, block.text), f"{block.page}: {block.title}"
        else:
            assert not block.marked
        written[block.title] = block.text
    assert any(block.marked for block in blocks())


def changed(before: str, after: str) -> tuple[int, ...]:
    """Return the numbers of the lines that are not in the version before; empty lines do not count."""
    lines = after.splitlines()
    matcher = difflib.SequenceMatcher(None, before.splitlines(), lines, autojunk=False)
    kept = {place + step for _, place, size in matcher.get_matching_blocks() for step in range(size)}
    return tuple(number for number, line in enumerate(lines, 1) if line and number - 1 not in kept)


def test_what_it_installs_is_there_to_be_installed() -> None:
    [install] = [block.text for block in blocks() if block.section == INSTALLATION]
    [extras] = re.findall(r"pip install '\.\[([\w,]+)\]'", install)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    pinned = "".join(file.read_text() for file in (ROOT / "requirements").glob("*.txt"))
    for package in ("uvicorn", "confluent-kafka", "httpx", "pytest", "pytest-asyncio"):
        assert package in install.split()
        assert f"\n{package}==" in pinned


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_it_is_written_in_plain_words(page: Path) -> None:
    assert not HARD_WORDS.findall(page.read_text())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_its_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize(
    ("expected", "printed", "is_so"),
    [
        ("8\n", "8", True),
        ("8\n", "80", False),
        ('{"a":1}\n', '{"a":2}', False),
        ("order … is paid", "order 12 is paid", True),
        ("order … is paid", "order 12\n is paid", False),
        ("…\nlast\n", "one\ntwo\nlast\n", True),
        ("first\n…\nlast\n", "first\nlast\n", True),
        ("first\n…\nlast\n", "zero\nfirst\nlast\n", False),
    ],
)
def test_an_ellipsis_stands_for_what_differs_from_run_to_run(expected: str, printed: str, *, is_so: bool) -> None:
    assert matches(expected, printed) is is_so
