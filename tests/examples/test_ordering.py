"""`python -m examples.ordering`: each parcel's steps in their order, and parcels side by side."""

from tests.examples.programs import told_by

_PARCELS = [f"parcel {number}" for number in range(1, 7)]
_STEPS = ["packed", "collected", "sorted", "delivered"]


def test_six_parcels() -> None:
    *told, total = told_by("ordering").splitlines()
    lines, summary = told[: -len(_PARCELS)], told[-len(_PARCELS) :]
    expected = dict.fromkeys(_PARCELS, _STEPS)
    expected["parcel 1"] = [*_STEPS, "returned"]
    assert summary == [f"{parcel}: {', '.join(expected[parcel])}" for parcel in _PARCELS]
    # One failed once: its later steps waited, and those of others did not.
    expected["parcel 2"] = ["packed", "collected", "not sorted yet", "sorted", "delivered"]
    heard = [line.split(": ") for line in lines]
    assert {parcel: [what for of, what in heard if of == parcel] for parcel in _PARCELS} == expected
    assert lines.index("parcel 2: sorted") - lines.index("parcel 2: not sorted yet") > 1
    assert total in {f"up to {count} parcels at once" for count in range(2, 7)}
