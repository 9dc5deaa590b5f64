"""The package, its documentation, examples and benchmarks are in plain words, without those that style forbids."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import faststream_outbox

PACKAGE = Path(faststream_outbox.__file__).parent
ROOT = Path(__file__).parents[2]
MODULES = sorted(PACKAGE.rglob("*.py"))
PROGRAMS = [*MODULES, *sorted((ROOT / "examples").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "benchmarks" / "README.md",
]
# Words that hide who does what, and old-fashioned ones that a reader has to look up.
HARD_WORDS = re.compile(
    r"\b(whoever|whatever it is|lest|thereby|all the same|in earnest|somebody|told|tells? of|take note|hears? of)\b",
    re.IGNORECASE,
)
# Prose for readers is held to more: each of these has a plainer word, and most of them hide the one who acts.
HARD_PROSE = re.compile(
    rf"{HARD_WORDS.pattern}|"
    r"\b(tells?|hears?|whichever|wherever|whatever|whence|hence|wherein|therein|thereof|anew|meanwhile|as ever|"
    r"is taken back|bury|mends?|mended|for good|as good as new|stands? or falls?|culprit)\b",
    re.IGNORECASE,
)
# A docstring starts with what the thing does or is: "Return whether …", not "Tell whether …".
HARD_BEGINNINGS = re.compile(r"(Tell|Tells|Say|Says|Hear|Hears|Have|Let)\b")
# Most readers read a sentence once. Twenty-five words is the rule of the house, and this is where it is broken.
MAX_WORDS = 40
# What is not prose: blocks of code, code in a line, addresses of links, comments of Markdown.
FENCE = re.compile(r"^( *)```.*?^\1```[^\n]*$", re.DOTALL | re.MULTILINE)
NOT_PROSE = re.compile(r"``.+?``|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.)\s)")
SENTENCES = re.compile(r"(?<=[.:;?!])(?:\*\*)?\s+")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """Return the text of a page without its code; links keep what the reader sees."""

    def keep_lines(match: re.Match[str]) -> str:
        return "x" + "\n" * match[0].count("\n")

    return NOT_PROSE.sub(keep_lines, FENCE.sub(keep_lines, page.read_text()))


def hard_words(page: Path) -> list[str]:
    # A heading is an anchor that others link to, and a quoted message is as the program writes it.
    lines = [line for line in enumerate(prose(page).splitlines(), 1) if not line[1].startswith("#")]
    return [f"{number}: {found[0]}: {line.strip()}" for number, line in lines if (found := HARD_PROSE.search(line))]


def long_sentences(page: Path) -> Iterator[str]:
    for paragraph in PARAGRAPHS.split(prose(page)):
        if not paragraph.lstrip().startswith("|"):
            yield from (text for text in SENTENCES.split(" ".join(paragraph.split())) if len(text.split()) > MAX_WORDS)


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_no_module_uses_words_that_hide_who_does_what(path: Path) -> None:
    lines = path.read_text().splitlines()
    found = [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if HARD_WORDS.search(line)]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_in_plain_words_and_short_sentences(page: Path) -> None:
    assert [*hard_words(page), *long_sentences(page)] == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_docstrings_begin_plainly(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module opens with one plain sentence"
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    docs = [(node.name, doc) for node in nodes if (doc := ast.get_docstring(node))]
    assert [each for each in docs if HARD_BEGINNINGS.match(each[1])] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is told by `NOTIFY`.", ["1: told: It is told by x."]),
        ("A row\nthat somebody has.", ["2: somebody: that somebody has."]),
        ("```python\n# whoever reads this\n```\n\nA [page](whoever.md) with `told` in code.", []),
        ("## Told in a heading", []),
    ],
)
def test_prose_is_found(text: str, found: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert hard_words(page) == found


def test_a_sentence_ends_with_its_paragraph_and_a_table_has_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    half = "word " * (MAX_WORDS // 2 + 1)
    page.write_text(f"{half}\n\n{half}\n- {half}\n- {half}\n\n{half}. {half}\n\n| {half} | {half} |\n")
    assert list(long_sentences(page)) == []
    page.write_text(f"{half}\n{half}\n")
    assert len(list(long_sentences(page))) == 1
