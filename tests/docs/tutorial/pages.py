"""The pages of the tutorial, taken apart: files to write, commands to run, and what a reader will see."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "tutorial"
FIRST = "index.md"
_BLOCK = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?(?: hl_lines="(?P<marked>[\d ]*)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
_NEXT = re.compile(r"^Next: \[[^]]+\]\(([\w-]+\.md)\)$", re.MULTILINE)
_TERMINAL = re.compile(r"(?:Output of t|T)erminal (\d: \w+)")
_OUTPUT = "Output"


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    #: The heading that it stands below.
    section: str
    language: str
    #: The name of a file, or of a terminal; without one, it is the reader's own terminal.
    title: str
    #: The numbers of the lines that the page marks as new.
    marked: tuple[int, ...]
    text: str

    @property
    def is_file(self) -> bool:
        return self.title not in {"", _OUTPUT} and not self.terminal

    @property
    def terminal(self) -> str:
        """The number and the name of a terminal; "" for the reader's own one."""
        found = _TERMINAL.fullmatch(self.title)
        return found[1] if found else ""

    @property
    def is_command(self) -> bool:
        return self.language == "sh"

    @property
    def is_output(self) -> bool:
        return self.language == "text" and self.title.startswith(_OUTPUT)

    @property
    def only_reads(self) -> bool:
        """Whether the command may be repeated until it prints what the page says."""
        return all(re.fullmatch(r"curl -s 127\.0\.0\.1\S+( \| grep .*)?", line) for line in self.text.splitlines())


def pages() -> list[Path]:
    """Return the pages in the order in which each leads to the next."""
    found = [FOLDER / FIRST]
    while following := _NEXT.findall(found[-1].read_text()):
        [name] = following
        assert FOLDER / name not in found, f"{name} comes twice"
        found.append(FOLDER / name)
    return found


def blocks() -> list[Block]:
    """Return all blocks, from the first page to the last."""
    return [block for page in pages() for block in _blocks_of(page)]


def _blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        headings = re.findall(r"^#+ (.*)$", _BLOCK.sub("", text[: found.start()]), re.MULTILINE)
        marked = tuple(int(number) for number in (found["marked"] or "").split())
        yield Block(page.name, headings[-1], found["language"], found["title"] or "", marked, found["text"])
