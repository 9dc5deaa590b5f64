"""A table that another session has locked: commands say so in one sentence, and do not hang."""

from collections.abc import Callable

import psycopg
import pytest

from faststream_outbox.storage.postgres.reads import execute, messages
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.cli.outbox import Done, Outbox

Command = Callable[..., Done]
SENTENCE = "Another session has locked the table: `faststream-outbox doctor` names it, and what ends that."


@pytest.mark.parametrize(
    "words",
    [
        ["stats"],
        ["queues", "list"],
        ["messages", "list"],
        ["messages", "show", 1],
        ["messages", "discard", "--queue", "q", "--reason", "r"],
        ["keys", "list"],
        ["keys", "show", "q", "k"],
        ["dlq", "list"],
        ["dlq", "groups"],
        ["timers", "list"],
        ["audit", "list"],
        ["nodes", "list"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_command_says_that_a_table_is_locked(
    outbox: Outbox, operate: Command, words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "'3s'" in execute.BEGIN_READ.text
    monkeypatch.setattr(messages, "BEGIN_READ", Statement(execute.BEGIN_READ.text.replace("'3s'", "'50ms'")))
    with psycopg.connect(outbox.dsn) as connection:
        connection.execute(b"LOCK TABLE outbox, outbox_dlq, outbox_control, outbox_audit, outbox_nodes")
        done = operate(*words)
        assert done.code == 1
        assert SENTENCE in " ".join(done.err.split())
        connection.rollback()
