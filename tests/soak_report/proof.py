"""`python -m tests.soak_report.proof`: put the totals of docs/soak.md into docs/proof.md."""

import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOAK: Final = ROOT / "docs" / "soak.md"
PROOF: Final = ROOT / "docs" / "proof.md"

_WRITTEN: Final = re.compile(
    r"^`(?P<command>make soak-report.*?)` wrote this page, on (?P<state>.+?): \d", re.MULTILINE
)
_RECIPE: Final = re.compile(r"^```sh\n(?P<lines>.+?)^```", re.MULTILINE | re.DOTALL)
_MARKS: Final = re.compile(r"(<!-- soak -->\n).*?(<!-- end of soak -->)", re.DOTALL)
# The columns whose numbers are added up, as the sentence names them.
_COUNTED: Final = {
    "messages": "messages",
    "processes killed": "processes killed",
    "paused": "processes paused",
    "connections cut": "connections cut",
    "Postgres crashes": "crashes of Postgres",
    "broker outages": "outages of brokers",
}


def renewed(proof: str, soak: str) -> str:
    """Return the page of proofs with the totals of a page of soaks."""
    return _MARKS.sub(lambda marks: f"{marks[1]}\n{summary(soak)}\n{marks[2]}", proof)


def summary(soak: str) -> str:
    """Return the sentence with all totals of a page of soaks, and the recipe to repeat them."""
    written, recipe = _WRITTEN.search(soak), _RECIPE.search(soak)
    if written is None or recipe is None:
        raise ValueError("This is no page that make soak-report wrote.")
    header, *runs = _table(soak)
    ran = [dict(zip(header, run, strict=True)) for run in runs if not run[1].startswith("not run")]
    hours = sum(float(run["minutes"]) for run in ran) / 60
    sums = {name: sum(_number(run[column]) for run in ran) for column, name in _COUNTED.items()}
    found = sum(_number(run["violations"]) for run in ran)
    figures = ", ".join(f"{number:,} {name}" for name, number in sums.items())
    return (
        f"On {written['state']}: **{hours:.1f} hours** of {len(ran)} soaks, {figures}: **{found} violations**. "
        f"Each soak, and what its checker looks for: [Soak runs](soak.md). To repeat all of them, or one:\n\n"
        f"```sh\n{recipe['lines']}```\n"
    )


def _table(soak: str) -> list[list[str]]:
    lines = [line for line in soak.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| ---")]


def _number(cell: str) -> int:
    return int(cell.strip("*").replace(",", ""))


def main() -> int:
    """Write the page."""
    PROOF.write_text(renewed(PROOF.read_text(), SOAK.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
