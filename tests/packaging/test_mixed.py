"""The original package of the same name beside this one: pip replaces one by the other, a mixture is refused."""

import re
import shutil
from pathlib import Path

import pytest

from faststream_outbox import __version__
from faststream_outbox._installation import _FOREIGN, foreign_parts
from tests.packaging.environments import ROOT, Environment

# The version that everything is compared with.
[ORIGINAL] = re.findall(
    r"^faststream-outbox==\S+$", (ROOT / "requirements" / "peer-original.txt").read_text(), re.MULTILINE
)
IMPORT = "python -P -c \"import faststream_outbox as package; print(len(package.__all__), hasattr(package, 'Relay'))\""


@pytest.fixture
def borrowing(environment: Environment) -> Environment:
    environment.borrow()
    return environment


def install(environment: Environment, folder: Path, *requirements: str, options: str = "") -> None:
    for requirement in requirements:
        environment.install(f"pip install --quiet --no-deps {options} {requirement}", folder)


@pytest.mark.parametrize("last", ["this one", "the original"])
def test_a_mixture_of_both_is_refused(borrowing: Environment, wheel: Path, tmp_path: Path, last: str) -> None:
    order = [ORIGINAL, str(wheel)] if last == "this one" else [str(wheel), ORIGINAL]
    install(borrowing, tmp_path, *order, options="--ignore-installed")
    for module in ("faststream_outbox", "faststream_outbox.storage", "faststream_outbox.annotations"):
        done = borrowing.shell(f"python -P -c 'import {module}'", tmp_path)
        assert done.returncode == 1
        error = done.stderr.splitlines()[-1]
        assert error.startswith(f"ImportError: Two packages are mixed in {borrowing.packages}/faststream_outbox: ")
        assert f"faststream-outbox {__version__}" in error
        assert ("__init__.py" in error) == (last == "the original")


def test_what_the_error_says_to_do_helps(borrowing: Environment, wheel: Path, tmp_path: Path) -> None:
    install(borrowing, tmp_path, ORIGINAL, str(wheel), options="--ignore-installed")
    for _ in range(2):
        assert borrowing.shell("pip uninstall --yes faststream-outbox", tmp_path).returncode == 0
    assert list(borrowing.packages.glob("faststream_outbox-*")) == []
    shutil.rmtree(borrowing.packages / "faststream_outbox", ignore_errors=True)
    install(borrowing, tmp_path, str(wheel))
    assert borrowing.shell(IMPORT, tmp_path).stdout.endswith("True\n")


def test_pip_replaces_one_by_the_other(borrowing: Environment, wheel: Path, tmp_path: Path) -> None:
    install(borrowing, tmp_path, ORIGINAL, str(wheel))
    assert borrowing.shell(IMPORT, tmp_path).stdout.endswith("True\n")
    install(borrowing, tmp_path, ORIGINAL)
    assert borrowing.shell(IMPORT, tmp_path).stdout.endswith("False\n")
    assert not (borrowing.packages / "faststream_outbox" / "_installation.py").exists()


def test_an_editable_install_is_taken_for_what_it_is(borrowing: Environment, sources: Path, tmp_path: Path) -> None:
    install(borrowing, tmp_path, str(sources), options="--no-build-isolation --editable")
    assert borrowing.shell(IMPORT, tmp_path).stdout.endswith("True\n")


def test_each_part_of_the_original_is_noticed(tmp_path: Path) -> None:
    assert foreign_parts(tmp_path, __version__) == []
    assert foreign_parts(tmp_path, None) == ["__init__.py"]
    for name in _FOREIGN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert foreign_parts(tmp_path, __version__) == [name]
        (tmp_path / name).unlink()
