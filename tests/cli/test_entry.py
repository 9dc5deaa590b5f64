"""The ways to start the program."""

import sys
import tomllib
from importlib.metadata import EntryPoint

import pytest

from faststream_outbox import __version__
from faststream_outbox.cli import main
from tests.cli.programs import CHECKOUT, run


def test_the_console_script() -> None:
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"faststream-outbox"}
    assert EntryPoint("faststream-outbox", scripts["faststream-outbox"], "console_scripts").load() is main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("dlq", "repaly"), "No such command 'repaly'. Did you mean 'replay'? See faststream-outbox dlq --help."),
        (
            ("--dsn", "x", "doctor"),
            "No such option: --dsn; options come after the command. See faststream-outbox",
        ),
        (("doctor", "--dns", "x"), "No such option: --dns"),
    ],
)
def test_a_command_that_is_not_understood_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["faststream-outbox", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Error: {sentence}")


def test_the_module() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
