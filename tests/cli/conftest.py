import sys
from collections.abc import Callable, Iterator

import pytest

from faststream_outbox.cli import main, secrets
from faststream_outbox.cli.operating.settings import OperatorSettings
from faststream_outbox.cli.relay.settings import RelaySettings
from faststream_outbox.cli.settings import keys_of
from faststream_outbox.embedded import Database
from tests.cli.outbox import Done, Outbox


@pytest.fixture(autouse=True)
def no_known_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of the test before."""
    monkeypatch.setattr(secrets, "_secrets", {})


@pytest.fixture(autouse=True)
def no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that would be read as settings."""
    for key in {*keys_of(RelaySettings), *keys_of(OperatorSettings)}:
        monkeypatch.delenv(f"OUTBOX_{key.upper()}", raising=False)


@pytest.fixture
def outbox(outbox_postgres: Database) -> Iterator[Outbox]:
    """An outbox with all tables, empty."""
    with Outbox(outbox_postgres) as outbox:
        yield outbox


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run the program in this process, which is quicker; its output goes into what is like a pipe."""

    def command(*arguments: object, dsn: str | None = None) -> Done:
        if dsn is not None:
            monkeypatch.setenv("OUTBOX_DSN", dsn)
        monkeypatch.setattr(sys, "argv", ["faststream-outbox", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return Done(ended.value.code or 0, shown.out, shown.err)

    return command


@pytest.fixture
def operate(outbox: Outbox, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a command on the outbox, in this process."""
    monkeypatch.setenv("OUTBOX_DSN", outbox.dsn)
    return command
