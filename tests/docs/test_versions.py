"""The versions that are said to be supported are those that CI runs."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
CI = (ROOT / ".ci" / "run").read_text()
POSTGRES = ["15", "18"]


def test_the_oldest_python_is_the_one_that_is_required() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_ci_runs_every_python_and_every_postgres() -> None:
    [others] = re.findall(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [PYTHONS[0], *others.split()] == PYTHONS
    assert re.findall(r"make versions PYTHONS=(\S+)", CI) == others.split()
    assert sorted(set(re.findall(r'^suite ".*Postgres (\d+)', CI, re.MULTILINE))) == POSTGRES


@pytest.mark.parametrize("page", ["README.md", "docs/upgrading.md"])
def test_the_page_names_them(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert f"Python {', '.join(PYTHONS[:-1])} and {PYTHONS[-1]}" in text
    assert f"Postgres {' and '.join(POSTGRES)}" in text


def test_a_python_that_is_not_here_is_skipped_and_named() -> None:
    make = ["make", "--no-print-directory", "versions", "PYTHONS=3.0"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Python 3.0 is not here: its tests were skipped.\n")
