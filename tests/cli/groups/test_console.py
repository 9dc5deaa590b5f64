"""`faststream-outbox console`: a server with a token on this machine, and what it refuses."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.outbox import Done, Outbox
from tests.cli.programs import COMMAND, environment
from tests.console.outbox import SAME_ORIGIN


@pytest.mark.parametrize("options", [[], ["--read-only"]])
def test_it_prints_its_address_and_a_token_that_lets_in(outbox: Outbox, options: list[str]) -> None:
    arguments = ["console", "--listen", "127.0.0.1:0", *options]
    variables = environment(OUTBOX_DSN=outbox.dsn)
    with subprocess.Popen(
        [*COMMAND, *arguments], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        found = re.fullmatch(r"The console is at (http://127\.0\.0\.1:\d+/)", program.stdout.readline().strip())
        assert found is not None
        token = program.stdout.readline().rpartition(" ")[2].strip()
        with httpx.Client(base_url=found[1], headers=SAME_ORIGIN, follow_redirects=True) as client:
            assert "Token" in client.get("/").text
            page = client.post("/login", data={"token": token}).text
        assert "The outbox is empty" in page
        assert ("Read-only" in page) == bool(options)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert errors == ""
    assert program.returncode == 0


def test_an_address_of_other_machines_needs_a_hook(operate: Callable[..., Done]) -> None:
    done = operate("console", "--listen", "0.0.0.0:0")
    assert done.code == 2
    assert "can be reached from other machines" in done.err


def test_a_hook_must_be_a_function(
    operate: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_hooks.py").write_text("access = 7\n")
    monkeypatch.chdir(tmp_path)
    done = operate("console", "--access", "no_hooks:access")
    assert (done.code, "not a function" in done.err) == (2, True)
    done = operate("console", "--access", "no_hooks:other")
    assert (done.code, "name its access" in done.err) == (2, True)


def test_without_the_extra_it_says_which_one_to_install(
    operate: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("faststream_outbox.console")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = operate("console")
    assert done.code == 1
    assert "needs the extra `console`" in done.err
