"""The ways to start the program."""

import tomllib
from importlib.metadata import EntryPoint

from faststream_outbox import __version__
from faststream_outbox.cli import main
from tests.cli.programs import CHECKOUT, run


def test_the_console_script() -> None:
    scripts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() == {"faststream-outbox"}
    assert EntryPoint("faststream-outbox", scripts["faststream-outbox"], "console_scripts").load() is main


def test_the_module() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
