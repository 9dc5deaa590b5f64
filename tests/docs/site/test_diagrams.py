"""The diagrams: drawn by the program that is in the repository, readable in both themes and on a phone."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "docs" / "_tools"
IMAGES = ROOT / "docs" / "images"
# The page that explains each of them.
SHOWN = {"overview": "index.md", "life": "how-it-works.md", "leases": "how-it-works.md", "keys": "ordering.md"}
SHOWN |= {"outage": "relay.md"}
# A letter of the system's font is seldom wider than so many times its size.
WIDEST = 0.6


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the program draws now, by name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return {name: draw().svg() for name, draw in tool("diagrams").PICTURES.items()}


def test_the_files_are_what_the_program_draws(drawn: dict[str, str]) -> None:
    assert drawn.keys() == SHOWN.keys()
    assert [name for name, svg in drawn.items() if (IMAGES / f"{name}.svg").read_text() != svg] == []


@pytest.mark.parametrize(("name", "page"), SHOWN.items())
def test_a_page_shows_it(name: str, page: str) -> None:
    assert f"](images/{name}.svg)" in (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("name", SHOWN)
def test_it_has_colours_for_both_themes(name: str) -> None:
    assert "@media (prefers-color-scheme:dark)" in (IMAGES / f"{name}.svg").read_text()


@pytest.mark.parametrize("name", SHOWN)
def test_its_text_is_inside_it(name: str) -> None:
    picture = ET.parse(IMAGES / f"{name}.svg").getroot()  # noqa: S314 - our own file
    left, top, width, height = (float(number) for number in picture.attrib["viewBox"].split())
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        x, y, words = float(text.attrib["x"]), float(text.attrib["y"]), text.text or ""
        size = 13 if re.search(r"\bs\b", text.attrib["class"]) else 15
        long = len(words) * size * WIDEST
        begins = {"start": x, "middle": x - long / 2, "end": x - long}[text.attrib["text-anchor"]]
        assert left <= begins, words
        assert begins + long <= left + width, words
        assert top < y < top + height, words
