"""The log: what was written is read back, whatever became of the writer."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.history import (
    Answered,
    Ask,
    Asked,
    Claimed,
    ClaimedRow,
    Committing,
    Ended,
    Event,
    HistoryReader,
    HistoryWriter,
    Inserted,
    decode,
    encode,
)

ENDLESS_WRITER = """
import pathlib, sys
from tests.soak.history import Committing, HistoryWriter
writer = HistoryWriter(pathlib.Path(sys.argv[1]), "killed")
for n in range(10_000_000):
    writer.write(Committing, f"tx{n}")
    if n == 1000:
        print("a thousand", flush=True)
"""


@pytest.mark.parametrize(
    "event",
    [
        Inserted(1.5, "tx", "row", 7, 1.25, 0.0, None),
        Claimed(2.0, "call", 12.0, [ClaimedRow("row", 7, "token", 1, 100.5, 110.5)]),
        Asked(3.0, "call", [Ask("row", "token", "retry", 0.5)]),
        Answered(4.0, "call", [("row", "token")], complete=False),
        Ended(5.0, "row", "token", ok=True),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert decode(encode(event)) == event


def test_a_line_without_its_end_is_left_for_later(tmp_path: Path) -> None:
    line = encode(Committing(1.0, "tx"))
    log = tmp_path / "process"
    log.write_bytes(line + line[:10])
    reader = HistoryReader(tmp_path)
    assert reader.poll() == [Committing(1.0, "tx")]
    with log.open("ab") as file:
        file.write(line[10:])
    assert reader.poll() == [Committing(1.0, "tx")]
    assert reader.poll() == []
    assert len(reader.events) == 2


def test_names_are_unique_over_processes(tmp_path: Path) -> None:
    writers = [HistoryWriter(tmp_path, name) for name in ("one", "other")]
    assert len({writer.new_name() for writer in writers for _ in range(3)}) == 6
    for writer in writers:
        writer.close()


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS_WRITER, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "a thousand\n"
        os.kill(writer.pid, signal.SIGKILL)
    events = HistoryReader(tmp_path).poll()
    assert [event.tx for event in events if isinstance(event, Committing)] == [f"tx{n}" for n in range(len(events))]
    assert len(events) > 1000
