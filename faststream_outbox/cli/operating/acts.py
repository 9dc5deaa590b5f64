"""Acts on rows: chosen by ids or by a filter, shown first, and done with `--yes`."""

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.operating.arguments import Order
from faststream_outbox.cli.operating.command import Run
from faststream_outbox.cli.operating.rows import DEAD_LETTERS, MESSAGES, no_letter, no_message
from faststream_outbox.cli.operating.views import Column, Rows, Sentence, View, Views
from faststream_outbox.operations import (
    ActResult,
    Count,
    DeadLetterFilter,
    MessageFilter,
    Progress,
    Selection,
)
from faststream_outbox.storage.operating.acts import GONE

# How many rows a dry run shows, and how many skipped rows are named.
_SAMPLE: Final = 10


@dataclass(frozen=True)
class Verb:
    """How an act is called: `replay`, `replayed`, of `dead letter`."""

    name: str
    past: str
    noun: str
    # What follows the noun: deliver messages *now*.
    adverb: str = ""

    def of(self, what: str) -> str:
        """Return the verb with its object."""
        return f"{self.name} {what} {self.adverb}".rstrip()


@dataclass(frozen=True)
class Choice:
    """The rows that an act is for."""

    # A selection, or ids.
    selected: Selection | list[int]
    count: Count
    sample: Sequence[Any]
    # Ids without a row, if the rows were looked at.
    missing: Sequence[int] = ()

    @property
    def is_one_row(self) -> bool:
        """Whether one row was named by its id: such an act needs no --yes."""
        return isinstance(self.selected, list) and len(self.selected) == 1


async def choose(
    run: Run, ids: list[int], where: MessageFilter | DeadLetterFilter, *, everything: bool, look: bool
) -> Choice:
    """Return the rows that were named; raise `UsageError` if none were, or by ids and a filter at once.

    With `look` the rows of ids are read and counted; a single one always is.
    """
    given = list(where)
    if ids and (given or everything):
        raise UsageError("Rows are chosen by ids or by options, not by both: leave out one.")
    if given and everything:
        raise UsageError("--all is for all rows: leave it out, or the options that choose some.")
    if ids:
        ids = list(dict.fromkeys(ids))
        if look or len(ids) == 1:
            return await _look(run, ids, where)
        return Choice(ids, Count(len(ids)), ())
    if not given and not everything:
        raise UsageError("No rows are chosen: give ids, or options such as --queue, or --all.")
    selection = await run.operations.select(where)
    return Choice(selection, selection.count, selection.sample)


async def _look(run: Run, ids: list[int], where: MessageFilter | DeadLetterFilter) -> Choice:
    read = run.operations.message if isinstance(where, MessageFilter) else run.operations.dead_letter
    sample, missing = list[Any](), list[int]()
    async with run.operations.reading() as session:
        for each in ids:
            row = await read(each, session=session)
            if row is None:
                missing.append(each)
            elif len(sample) < _SAMPLE:
                sample.append(row)
    return Choice(ids, Count(len(ids) - len(missing)), sample, missing)


async def act(
    run: Run,
    verb: Verb,
    order: Order,
    where: MessageFilter | DeadLetterFilter,
    call: Callable[..., Awaitable[ActResult]],
) -> View:
    """Do an act, if it is for one row that was named or `--yes` was given; otherwise show what it would do.

    `call` is the act of the core; it gets the rows, who acts and why.
    """
    choice = await choose(run, order.ids, where, everything=order.everything, look=not order.yes)
    if not (order.yes or choice.is_one_row):
        return _dry_run(verb, choice, MESSAGES if isinstance(where, MessageFilter) else DEAD_LETTERS)
    if choice.is_one_row and not choice.sample:
        raise ProgramError(no_message(order.ids[0]) if isinstance(where, MessageFilter) else no_letter(order.ids[0]))
    with _progress(verb, choice.count) as progress:
        result = await call(choice.selected, progress=progress, **order.author.keywords)
    return done(verb, result)


def _dry_run(verb: Verb, choice: Choice, columns: Sequence[Column]) -> View:
    sentence = f"Would {verb.of(_number(choice.count, verb.noun))}. Nothing was changed."
    if not choice.count.number:
        sentence = _nothing(verb)
    data: dict[str, Any] = {
        "dry_run": True,
        "action": f"{verb.name} {verb.adverb}".rstrip(),
        "count": choice.count,
        "sample": choice.sample,
        "missing": choice.missing,
    }
    missing = dict.fromkeys(choice.missing, GONE)
    notes = _left_out(f"Would leave out {_number(Count(len(missing)), verb.noun)}:", missing)
    if not choice.count.number:
        return Sentence(sentence, data, notes=notes, exit_code=1 if missing else 0)
    sample = Rows(columns, choice.sample, title="For example:")
    them = "it" if choice.count.number == 1 else "them"
    notes.append(f"Give --yes to {verb.of(them)}.")
    return Views({"what": Sentence(sentence), "sample": sample}, data, notes=notes)


def done(verb: Verb, result: ActResult) -> View:
    """Return what an act has done; the exit code is 1 if it left out rows or did nothing."""
    text = f"{verb.past.capitalize()} {_number(Count(result.done), verb.noun)}."
    if not (result.done or result.skipped):
        text = _nothing(verb)
    notes = _left_out(f"Left out {_number(Count(len(result.skipped)), verb.noun)}:", result.skipped)
    if result.done and result.audit_id is None:
        notes.append("There is no audit table: who did this, and why, is not kept in the database.")
    values = {
        "action": result.action,
        "done": result.done,
        "skipped": {str(each): why for each, why in result.skipped.items()},
        "audit_id": result.audit_id,
    }
    return Sentence(text, values, notes=notes, exit_code=1 if result.skipped or not result.done else 0)


def _left_out(head: str, skipped: Mapping[int, str]) -> list[str]:
    """Return sentences about rows that an act leaves out, and why."""
    if not skipped:
        return []
    lines = [f"  {each}: {why}" for each, why in list(skipped.items())[:_SAMPLE]]
    more = len(skipped) - _SAMPLE
    return [head, *lines, *([f"  and {more:,} more (-o json names them)"] if more > 0 else [])]


def _nothing(verb: Verb) -> str:
    return f"No {verb.noun} matches: there is nothing to {verb.name}."


def _number(count: Count, noun: str) -> str:
    return f"{count} {noun}{'' if count.number == 1 and not count.capped else 's'}"


@contextmanager
def _progress(verb: Verb, total: Count) -> Iterator[Callable[[Progress], None] | None]:
    """Show a bar on stderr while an act on many rows runs, if a person looks."""
    if not sys.stderr.isatty() or total.number <= 1:
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - not needed in a pipe
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb.name, total=None if total.capped else total.number)
        yield lambda at: bar.update(task, completed=at.done + at.skipped)
