"""The export of dead letters: a documented form, in which nothing is lost."""

import base64
import json
from typing import Any

from faststream_outbox.operations import DeadLetterFilter
from faststream_outbox.storage import NewRow
from tests.backends import Backend
from tests.operations.letters import bury, operations_of


async def test_dead_letters_are_exported_with_nothing_lost(backend: Backend) -> None:
    await bury(backend, NewRow("q", "grüß".encode(), {"content-type": "text/plain", "n": [1, None]}))
    await bury(backend, NewRow("q", b"\xff\x00", timer_id="t"), reason="max_deliveries", exception=None)
    operations = await operations_of(backend)
    selection = await operations.select(DeadLetterFilter(queue="q"))
    lines = [json.loads(json.dumps(line)) async for line in operations.export(selection)]
    first, second = lines
    assert (first["payload_text"], first["headers"]) == ("grüß", {"content-type": "text/plain", "n": [1, None]})
    assert (first["failure_reason"], first["last_exception"], first["attempts_count"]) == (
        "rejected",
        "ValueError: no",
        1,
    )
    assert (base64.b64decode(second["payload_base64"]), second["timer_id"], second["headers"]) == (
        b"\xff\x00",
        "t",
        None,
    )
    assert "payload_text" not in second
    assert first["failed_at"] >= first["created_at"]
    assert len(await backend.dead_letters()) == 2


async def test_an_export_reads_on_from_slice_to_slice(backend: Backend) -> None:
    await bury(backend, *(NewRow("q", b"%d" % n) for n in range(250)))
    operations = await operations_of(backend)
    seen = list[dict[str, Any]]()
    async for line in operations.export(await operations.select(DeadLetterFilter())):
        seen.append(line)
    assert [line["payload_text"] for line in seen] == [str(n) for n in range(250)]
    assert [line["id"] async for line in operations.export([3, 1])] == [3, 1]
