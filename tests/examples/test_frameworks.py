"""`python -m examples.frameworks`: an order through each of the programs, and their messages are handled."""

import re

from tests.examples.programs import told_by


def test_each_program_places_an_order_and_its_message() -> None:
    printed = told_by("frameworks")
    placed = [line for line in printed.splitlines() if re.match(r"(a script|SQLModel|Flask|Starlette|Litestar) ", line)]
    assert placed == [
        "a script packed [1, 2]",
        "SQLModel placed 1",
        "Flask placed {'id': 3}",
        "Starlette placed {'id': 4}",
        "Litestar placed {'id': 5}",
    ]
    # The orders of SQLModel and of Flask are packed by the process that runs next.
    packed = re.findall(r"^packing order (\d)$", printed, re.MULTILINE)
    assert sorted(packed) == ["1", "3", "4", "5"]
    assert printed.splitlines()[-1] == "0 messages are left"
