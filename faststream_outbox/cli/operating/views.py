"""What a command shows: rows, one record, or several of these; as tables, plain text or JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, Final, Literal

from faststream_outbox.cli.operating.values import as_cell, as_json, as_relative, printable
from faststream_outbox.cli.operating.widths import GAP, Texts, fit, fits
from faststream_outbox.operations import Count


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, and how it is read from an item."""

    name: str
    value: Callable[[Any], Any]
    align: Literal["left", "right"] = "left"
    # The colours of cells in a terminal, by their values.
    colours: Mapping[Any, str] = field(default_factory=dict)
    # The colour of all cells that are neither empty nor zero.
    colour: str | None = None
    # Names that are read and copied as a whole.
    whole: bool = False
    # Left out of a terminal's table where no row has it, or all have zero.
    rare: bool = False
    # Where a terminal has no room, columns that are spare are left out, 1 first.
    spare: int = 0

    def style(self, value: Any) -> str:
        """Return the colour of a value; an empty text for none."""
        if isinstance(value, str | bool) and value in self.colours:
            return self.colours[value]
        matters = value is not None and not (isinstance(value, Count) and value.number == 0)
        return self.colour if self.colour and matters else ""


def column(
    name: str,
    attribute: str | None = None,
    *,
    align: Literal["left", "right"] = "left",
    colours: Mapping[Any, str] | None = None,
    colour: str | None = None,
    whole: bool = False,
    rare: bool = False,
    spare: int = 0,
) -> Column:
    """Return the column of an attribute; by default that of the same name."""
    wanted = attribute or name.replace(" ", "_")
    return Column(name, lambda item: getattr(item, wanted), align, colours or {}, colour, whole, rare, spare)


def number(
    name: str, attribute: str | None = None, *, colour: str | None = None, rare: bool = False, spare: int = 0
) -> Column:
    """Return the column of an attribute that is a number, aligned on the right."""
    return column(name, attribute, align="right", colour=colour, rare=rare, spare=spare)


QUEUE: Final = column("queue", whole=True)

STATE_COLOURS: Final = {
    "retrying": "yellow",
    "blocked": "yellow",
    "delayed": "cyan",
    "parked": "red",
    "expired": "red",
    "in_flight": "green",
}


@dataclass
class View:
    """What a command shows, and the exit code that it ends with."""

    # Sentences for people, on stderr: what to do next.
    notes: list[str] = field(default_factory=list, kw_only=True)
    exit_code: int = field(default=0, kw_only=True)

    def as_json(self) -> Any:
        """Return it for JSON."""
        raise NotImplementedError

    def json_lines(self) -> Iterable[Any]:
        """Return what each line of JSON lines holds."""
        return [self.as_json()]

    def as_text(self) -> str:
        """Return it as plain text, aligned."""
        raise NotImplementedError

    def as_rich(self) -> Any:
        """Return it for a terminal."""
        raise NotImplementedError


@dataclass
class Rows(View):
    """A table; with no items, a sentence."""

    columns: Sequence[Column]
    items: Sequence[Any]
    empty: str = "Nothing found."
    title: str | None = None

    def as_json(self) -> Any:
        """Return the items."""
        return as_json(list(self.items))

    def json_lines(self) -> Iterable[Any]:
        """Return one line for each item."""
        return map(as_json, self.items)

    def _texts(self, column: Column, room: int) -> Texts:
        """Return a column as a terminal shows it: names, times, numbers and states stay whole."""
        values = [column.value(item) for item in self.items]
        cells = [_short(value) for value in values]
        times = all(value is None or isinstance(value, datetime) for value in values)
        # A name that would take half of the room is broken: what stands beside it matters, too.
        name = column.whole and all(len(cell) <= room // 2 for cell in cells)
        return Texts(column.name, cells, whole=name or times or column.align == "right" or bool(column.colours))

    def _chosen(self, room: int) -> tuple[list[tuple[Column, Texts]], list[str]]:
        """Return the columns that a terminal shows, and the names of those for which it has no room."""
        chosen = [(each, self._texts(each, room)) for each in self.columns if self._is_shown(each)]
        spare = sorted((each for each, _ in chosen if each.spare), key=lambda each: each.spare)
        left_out = list[Column]()
        while spare and not fits([texts for _, texts in chosen], room):
            left_out.append(spare.pop(0))
            chosen = [(each, texts) for each, texts in chosen if each is not left_out[-1]]
        return chosen, [each.name for each in self.columns if each in left_out]

    def _is_shown(self, column: Column) -> bool:
        """Return whether something stands in a column: it would take the room of the others."""
        values = [column.value(item) for item in self.items]
        zero = column.rare and all(isinstance(value, Count) and not value.number for value in values)
        return not zero and any(value is not None for value in values)

    def _cells(self) -> list[list[str]]:
        return [[as_cell(each.value(item)) for each in self.columns] for item in self.items]

    def as_text(self) -> str:
        """Return the table in aligned columns."""
        title = f"{self.title}\n" if self.title else ""
        if not self.items:
            return f"{title}{self.empty}"
        lines = [[each.name for each in self.columns], *self._cells()]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        aligns = [str.rjust if each.align == "right" else str.ljust for each in self.columns]
        return title + "\n".join(
            GAP.join(align(cell, width) for align, cell, width in zip(aligns, line, widths, strict=True)).rstrip()
            for line in lines
        )

    def as_rich(self) -> Any:
        """Return the table of a terminal, which fits the width; times are relative to now."""
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - not needed in a pipe
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        if not self.items:
            return Text(self.as_text())
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.title, table.title_justify, table.title_style = self.title, "left", "bold"
        room = get_terminal_size().columns
        chosen, left_out = self._chosen(room)
        widths = fit([texts for _, texts in chosen], room)
        # Otherwise a table that is too wide would be cut, in which nothing could be read.
        table.width = sum(widths) + len(GAP) * (len(widths) - 1)
        if left_out:
            table.caption = f"Left out, for want of room: {', '.join(left_out)}."
            table.caption_justify = "left"
        for (each, texts), width in zip(chosen, widths, strict=True):
            head = texts.wrapped_head(width)
            table.add_column(head, justify=each.align, overflow="fold", no_wrap=texts.whole, width=width)
        for item in self.items:
            values = [(each, each.value(item)) for each, _ in chosen]
            table.add_row(*(Text(_short(value), style=each.style(value)) for each, value in values))
        return table


def _short(value: Any) -> str:
    return as_relative(value) if isinstance(value, datetime) else as_cell(value)


@dataclass
class Record(View):
    """One item: its fields by name, then texts of several lines, each under a head."""

    item: Any
    fields: Mapping[str, Any]
    texts: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> Any:
        """Return the whole item."""
        return as_json(self.item)

    def as_text(self) -> str:
        """Return a line for each field, then the texts."""
        shown = {name: as_cell(value) for name, value in self.fields.items() if value is not None}
        width = max(map(len, shown), default=0)
        lines = [f"{name.ljust(width)}{GAP}{value}" for name, value in shown.items()]
        for name, text in self.texts.items():
            lines += ["", f"{name}:", printable(text)]
        return "\n".join(lines)

    def as_rich(self) -> Any:
        """Return the lines with their names in colour."""
        from rich.text import Text  # noqa: PLC0415 - not needed in a pipe

        text = Text(self.as_text())
        for name in self.fields:
            text.highlight_regex(rf"(?m)^{name}(?=  )", style="bold")
        for name in self.texts:
            text.highlight_regex(rf"(?m)^{name}:$", style="bold")
        return text


@dataclass
class Sentence(View):
    """What was done, or would be: a sentence, and the same as JSON."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> Any:
        """Return what the sentence says."""
        return as_json(self.data)

    def as_text(self) -> str:
        """Return the sentence."""
        return self.text

    def as_rich(self) -> Any:
        """Return the sentence."""
        from rich.text import Text  # noqa: PLC0415 - not needed in a pipe

        return Text(self.text)


@dataclass
class Views(View):
    """Several views, one below the other; `data` is what JSON has instead of the parts."""

    parts: Mapping[str, View]
    data: Any = None

    def as_json(self) -> Any:
        """Return the data, or an object with the parts."""
        if self.data is not None:
            return as_json(self.data)
        return {name: part.as_json() for name, part in self.parts.items()}

    def as_text(self) -> str:
        """Return the parts, apart by empty lines."""
        return "\n\n".join(part.as_text() for part in self.parts.values())

    def as_rich(self) -> Any:
        """Return the parts, apart by empty lines."""
        from rich.console import Group  # noqa: PLC0415 - not needed in a pipe

        return Group(*(each for part in self.parts.values() for each in (part.as_rich(), "")))
