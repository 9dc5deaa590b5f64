"""`python -m examples.fastapi_app`: an order and its message, one transaction; nothing is left at the end."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

_CHECKOUT = Path(__file__).parents[2]
_PATIENCE = 60.0


@pytest.fixture
def temp_dir() -> Iterator[Path]:
    """A temporary directory that the server's account can enter too."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-fastapi-tests-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def service(temp_dir: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.fastapi_app", "--port", str(port)],
        cwd=_CHECKOUT,
        env=os.environ | {"TMPDIR": str(temp_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            yield process, client
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # a group of its own
        process.wait(timeout=30)


def wait_for(client: httpx.Client, path: str, process: subprocess.Popen[str], status: str | None = None) -> None:
    """Ask until the service answers, and, where a status is given, answers with it."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(httpx.TransportError):
            answer = client.get(path)
            if status is None or answer.json().get("status") == status:
                return
        time.sleep(0.05)
    pytest.fail(f"{path} did not answer as expected within {_PATIENCE} s")


def test_an_order_is_placed_and_confirmed(service: tuple[subprocess.Popen[str], httpx.Client], temp_dir: Path) -> None:
    process, client = service
    wait_for(client, "/openapi.json", process)
    refused = client.post("/orders", json={"product": "nothing"})
    assert refused.status_code == 422
    placed = client.post("/orders", json={"product": "tea"})
    assert (placed.status_code, placed.json()["status"]) == (201, "placed")
    path = f"/orders/{placed.json()['id']}"
    wait_for(client, path, process, "confirmed")
    # The refused order took an id and left nothing else: had its message gone out, its handler would be retrying.
    assert client.get(f"/orders/{placed.json()['id'] - 1}").status_code == 404
    assert client.get("/asyncapi.json").json()["channels"].keys() == {"orders:ConfirmOrder"}
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=_PATIENCE)
    assert "Application shutdown complete" in errors
    assert f"Order {placed.json()['id']} confirmed" in output
    assert "Traceback" not in output + errors
    assert list(temp_dir.iterdir()) == []
