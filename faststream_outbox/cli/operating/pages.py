"""Lists that are read page by page, up to `--limit` rows."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from faststream_outbox.cli.operating.arguments import PageOptions
from faststream_outbox.cli.operating.views import Column, Rows
from faststream_outbox.operations import Page

# A page is one statement and one answer in memory.
_LARGEST_PAGE: Final = 1000
# A search that finds little stops after so many parts, so that a command ends within seconds on a large table.
_MOST_PARTS: Final = 50


async def read_pages(
    read: Callable[..., Awaitable[Page[Any]]], columns: Sequence[Column], page: PageOptions, empty: str
) -> Rows:
    """Read pages until there are enough items or no more; note where to go on."""
    items, after = list[Any](), page.after
    for _ in range(_MOST_PARTS):
        found = await read(after=after, limit=min(_LARGEST_PAGE, page.limit - len(items)))
        items += found.items
        after = found.after
        if after is None or len(items) >= page.limit:
            break
    # On a line of its own, which is copied more easily.
    notes = [] if after is None else [f"There may be more: raise --limit, or go on with\n--after {shlex.quote(after)}"]
    return Rows(columns, items, empty, notes=notes)
