"""A machine that lacks servers runs the rest, and says at the end what it lacks and how to get it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pooler import PgBouncer
from tests.servers.kafka import ELSEWHERE, Kafka
from tests.servers.rabbitmq import RabbitMQ

_ROOT = Path(__file__).parents[2]
_TESTS = ["tests/servers/test_kafka.py", "tests/servers/test_rabbitmq.py", "tests/broker/test_pooler.py"]


def run(path: str, *options: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", ELSEWHERE))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    result = subprocess.run(
        command, cwd=_ROOT, env=environment | {"PATH": path}, capture_output=True, text=True, check=False, timeout=150
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_what_is_missing_is_named_with_how_to_get_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    output = run(str(tmp_path), *_TESTS, *options)
    assert " passed" not in output
    [_, report] = output.split("servers that this machine lacks")
    rabbitmq = "erl" if Path("/usr/lib/rabbitmq").exists() else "rabbitmq-server"
    for name, lacks, how in (
        ("Kafka", "there is no java", Kafka.how),
        ("RabbitMQ", f"there is no {rabbitmq}", RabbitMQ.how),
        ("pgbouncer", "it is not installed", PgBouncer.how),
    ):
        assert re.search(rf"^{name}: {lacks}; [1-9]\d* skipped. To run them: {re.escape(how)}$", report, re.MULTILINE)


def test_a_run_that_lacks_nothing_reports_nothing() -> None:
    assert "lacks" not in run(os.environ["PATH"], "tests/servers/test_server.py", "-k", "ends_at_once")
