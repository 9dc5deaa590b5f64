"""`python -m examples.parking`: accounts that stop, and go on."""

from tests.examples.programs import told_by


def test_a_day_at_the_ledger() -> None:
    told = told_by("parking").splitlines()
    stopped = [line for line in told if "is stopped" in line]
    assert stopped == [
        f"{name} is stopped (retry_terminal: ValueError: {name} has not {amount}), and 1 entry waits behind it"
        for name, amount in (("Alan", 50), ("Grace", 20))
    ]
    before, after = told[: told.index(stopped[0])], told[told.index(stopped[-1]) + 1 : -1]
    assert sorted(before) == ["Ada: +100", "Ada: -30", "Alan: +10"]
    assert sorted(after) == ["Alan: +5", "Alan: -50", "Grace: +70"]
    assert after.index("Alan: -50") < after.index("Alan: +5")
    assert told[-1] == "in the books: {'Ada': 70, 'Alan': 5, 'Grace': 70}; refused: ['not ours']"
