"""`python -m examples.inbox`: a day at the bank."""

from tests.examples.programs import told_by


def test_a_day() -> None:
    printed = told_by("inbox")
    *told, total = printed.splitlines()
    assert sorted(line for line in told if "booked" in line) == ["100 cents: booked", "25 cents: booked"]
    assert len([line for line in told if "undone" in line]) == 1
    assert total == "5 announcements, 125 cents"
