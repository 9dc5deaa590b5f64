"""Jars are there completely or not at all. Maven is a script here; the real one ran if the tests of Kafka did."""

import os
from pathlib import Path

import pytest

from tests.servers import kafka_jars


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache" / "jars"
    monkeypatch.setenv("OUTBOX_TEST_KAFKA_JARS", str(directory))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    return directory


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_they_are_fetched_once(directory: Path, tmp_path: Path) -> None:
    program(tmp_path / "java", "")
    program(tmp_path / "mvn", 'for word; do :; done; mkdir "${word#*=}"; touch "${word#*=}/kafka.jar"')
    assert kafka_jars.main() is None
    assert [file.name for file in directory.iterdir()] == ["kafka.jar"]
    program(tmp_path / "mvn", "exit 1")
    assert kafka_jars.main() is None


def test_nothing_is_kept_of_a_fetch_that_failed(directory: Path, tmp_path: Path) -> None:
    program(tmp_path / "java", "")
    program(tmp_path / "mvn", 'for word; do :; done; mkdir "${word#*=}"; touch "${word#*=}/half.jar"; exit 1')
    assert "is not fetched" in (kafka_jars.main() or "")
    assert list(directory.parent.iterdir()) == []


def test_who_has_no_maven_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "there is no mvn and no java" in (kafka_jars.main() or "")
    assert not directory.exists()


def test_they_are_below_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTBOX_TEST_KAFKA_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert kafka_jars.jars() == Path(f"/somewhere/faststream-outbox/kafka-{kafka_jars.KAFKA_VERSION}")
