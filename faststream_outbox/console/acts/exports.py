"""Export dead letters: a file of JSON lines, read while it is sent."""

import json
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from faststream_outbox.console.access import Access
from faststream_outbox.console.acts.rows import select
from faststream_outbox.console.answers import Console
from faststream_outbox.console.errors import RefusedError
from faststream_outbox.console.forms import read_form
from faststream_outbox.operations import Selection


async def export(console: Console, request: Request, access: Access) -> Response:
    """Answer with the dead letters that a form names; nothing is changed, so a read-only console does it too."""
    if console.site.redacts:
        raise RefusedError("Bodies are redacted here, and an export has them as they are: use the command line.")
    if not access.may("export"):
        raise RefusedError(f"{access.user} may not do export: the access hook does not allow it.")
    selection = await select(console, access, "dead_letters", await read_form(request))
    if selection.where is not None and not access.sees(selection.where.queue):
        raise RefusedError("You see some queues only: choose one of them first.")
    headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
    return StreamingResponse(_lines(console, selection), media_type="application/x-ndjson", headers=headers)


async def _lines(console: Console, selection: Selection) -> AsyncIterator[str]:
    async for letter in console.site.operations.export(selection):
        yield json.dumps(letter, ensure_ascii=False) + "\n"
