"""`python -m examples.batches`: an import, and the line that holds nobody up."""

import re
from itertools import pairwise

from tests.examples.programs import told_by


def test_an_import() -> None:
    told = told_by("batches")
    *_, total = told.splitlines()
    assert total == "4999 lines of 5000 are stored; line 1234 is dead: -300.0 °C"
    calls = [(int(count), what) for count, what in re.findall(r"^ *(\d+) (\w+)$", told, re.MULTILINE)]
    assert sum(count for count, what in calls if what == "stored") == 4999
    assert max(count for count, _ in calls) == 1000
    refused = [count for count, what in calls if what == "refused"]
    assert refused[-1] == 1, "alone at last"
    assert all(fewer <= max(1, more // 2) for more, fewer in pairwise(refused))
