"""ARCHITECTURE.md names the files and rooms that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "faststream_outbox"
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
# A step is "7. `engine/claim/claimer.py`: …".
STEPS = re.findall(r"^\d+\. `([\w/]+\.py)`:", PAGE, re.MULTILINE)
NAMED = re.findall(r"`((?:\w+/)*\w+\.py|(?:\w+/)+)`", PAGE)


def test_the_walk_of_a_message_names_at_most_25_files_and_none_twice() -> None:
    assert 15 < len(STEPS) <= 25
    assert len(set(STEPS)) == len(STEPS)
    assert [step for step in STEPS if not (PACKAGE / step).is_file()] == []


def test_every_file_that_is_named_is_there() -> None:
    roots = [PACKAGE, ROOT, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    assert [name for name in NAMED if not any((root / name).exists() for root in roots)] == []


def test_every_room_is_in_the_tree() -> None:
    tree = PAGE.split("```")[1]
    rooms = [path.name for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert [room for room in rooms if f"{room}/" not in tree] == []


def test_no_room_and_no_file_is_too_large() -> None:
    files = list(PACKAGE.rglob("*.py"))
    lines = {file: len(file.read_text().splitlines()) for file in files}
    assert [file for file, count in lines.items() if count > 400] == []
    rooms = {file.parent for file in files}
    assert [room for room in rooms if len(list(room.glob("*.py"))) > 16] == []
