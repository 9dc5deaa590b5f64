"""Where and how views are written: for a terminal, for a pipe, as JSON; once, or again and again."""

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from enum import StrEnum
from functools import cached_property
from typing import Any

from faststream_outbox.cli.operating.values import as_json, printable
from faststream_outbox.cli.operating.views import View
from faststream_outbox.cli.secrets import hide


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class Output:
    """Writes what commands show to stdout, and notes for people to stderr."""

    def __init__(self, form: Format) -> None:
        self.form = form

    @cached_property
    def _console(self) -> Any:
        """The console of a terminal; rich obeys NO_COLOR."""
        from rich.console import Console  # noqa: PLC0415 - not needed in a pipe

        return Console(highlight=False)

    @property
    def _in_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def draws(self) -> bool:
        """Whether tables are drawn on a terminal, where they can be drawn again at the same place."""
        return self.form is Format.TABLE and self._in_terminal

    def show(self, view: View) -> None:
        """Write a view once, then its notes."""
        match self.form:
            case Format.JSON:
                self._write(json.dumps(view.as_json(), indent=2, ensure_ascii=False))
            case Format.JSONL:
                for each in view.json_lines():
                    self.line(each)
            case Format.TABLE if self._in_terminal:
                # A line that is wider is left to the terminal, which wraps it in a way that can be pasted.
                self._console.print(view.as_rich(), crop=False)
            case Format.TABLE:
                self._write(view.as_text())
        for each in view.notes:
            self.note(each)

    def line(self, item: Any) -> None:
        """Write one line of JSON lines at once, for a person who reads while the command runs."""
        self._write(json.dumps(as_json(item), ensure_ascii=False))

    def text(self, line: str) -> None:
        """Write a line of text at once."""
        self._write(printable(line))

    def plain(self, line: str) -> None:
        """Write a line as it is, for a program."""
        self._write(line)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def note(self, sentence: str) -> None:
        """Write a sentence for people to stderr, where it does not mix with results."""
        sys.stderr.write(f"{hide(printable(sentence))}\n")
        sys.stderr.flush()

    async def watch(
        self,
        look: Callable[[], Awaitable[View | None]],
        interval: float,
        *,
        frames: int | None = None,
        full_screen: bool = False,
    ) -> int:
        """Show what `look` returns every `interval` seconds, until Ctrl-C; in a terminal at the same place.

        With `full_screen` the terminal shows nothing else meanwhile, and what it showed before afterwards.
        """
        # A task that is cancelled by Ctrl-C ends here, and the command with it, without an error.
        with suppress(asyncio.CancelledError), ExitStack() as stack:
            draw: Callable[[View], None] = self.show
            if self.draws:
                draw = self._redraw(stack, full_screen=full_screen)
            left = itertools.repeat(None) if frames is None else range(frames - 1, -1, -1)
            for number in left:
                view = await look()
                if view is not None:
                    draw(view)
                if number != 0:
                    await asyncio.sleep(interval)
        return 0

    def _redraw(self, stack: ExitStack, *, full_screen: bool) -> Callable[[View], None]:
        from rich.live import Live  # noqa: PLC0415 - not needed in a pipe

        live = Live(
            console=self._console,
            screen=full_screen,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        stack.enter_context(live)
        return lambda view: live.update(view.as_rich(), refresh=True)

    def _write(self, text: str) -> None:
        # A character that the terminal's encoding lacks must not end the command.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(f"{text.encode(encoding, 'replace').decode(encoding)}\n")
        sys.stdout.flush()
