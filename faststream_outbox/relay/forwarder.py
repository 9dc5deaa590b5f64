"""Sends rows to a target, and decides the outcome of each by its confirmation or error."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from faststream_outbox.engine.pipeline import Pipeline
from faststream_outbox.message import OutboxDelivery, Reject
from faststream_outbox.relay.destinations import Destinations
from faststream_outbox.relay.isolation import Isolation
from faststream_outbox.relay.outage import Outage
from faststream_outbox.relay.outgoing import Outgoing, make_outgoing
from faststream_outbox.relay.routing import Routes, UnroutableError
from faststream_outbox.relay.targets.base import (
    HoldsLease,
    LeaseLostError,
    NotAcceptedError,
    NotAllowedError,
    OutageError,
    RefusedError,
    Target,
)
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.judge import Judge

_SENT: Final = Ack()
# For how many seconds to give back a row on which the connection is lost each time, while no other row is confirmed.
_UNPROVEN_DELAY: Final = 5.0

# The error of rows that are not sent, because their destination accepts nothing.
_WAITS: Final = NotAcceptedError("The destination accepts nothing for now.")

# A row and its message, and a row and its outcome.
_Sendable = tuple[OutboxRow, Outgoing]
_Done = tuple[OutboxRow, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarder:
    """Sends rows: those of one key in order, those without a key together, apart by destination."""

    target: Target
    routes: Routes
    judge: Judge
    outage: Outage
    destinations: Destinations
    isolation: Isolation
    pipeline: Pipeline
    source: str
    cloudevents: bool

    async def forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send rows that have the same key, or no key; keep them through an outage and send them after it.

        What is confirmed is settled before anything else is waited for. Rows whose destination accepts nothing for now
        are given back.
        """
        done = await (self._forward_each(rows) if rows[0].entity_key is None else self._forward_run(rows))
        return _settlements(done)

    async def _forward_each(self, rows: Sequence[OutboxRow]) -> list[_Done]:
        """Send rows without a key, those of each destination apart."""
        done: list[_Done] = []
        groups: dict[str, list[_Sendable]] = {}
        for row in rows:
            made = self._make(row)
            if isinstance(made, Outgoing):
                groups.setdefault(made.destination if self.target.by_destination else "", []).append((row, made))
            else:
                done.append((row, self._outcome(row, made)))
        if len(groups) == 1:
            self._settle(done)
            [group] = groups.values()
            return await self._forward_group(group)
        if groups:
            self._settle(done)
            await asyncio.gather(*(self._settle_group(group) for group in groups.values()))
            return []
        return done

    async def _settle_group(self, group: Sequence[_Sendable]) -> None:
        self._settle(await self._forward_group(group))

    async def _forward_group(self, group: Sequence[_Sendable]) -> list[_Done]:
        """Send rows without a key that have the same destination, if the target distinguishes destinations."""
        done: list[_Done] = []
        destination, left, call = group[0][1].destination, list(group), object()
        try:
            while left:
                if self.outage.outlasts_relay or not self.destinations.admits(destination, call):
                    await self._give_back([row for row, _ in left], destination)
                    break
                # Try a paused destination with one row: a full exchange has copied each try to queues that have room.
                paused = self.destinations.is_paused(destination)
                count = 1 if paused else self.isolation.count_together([row for row, _ in left])
                part, left = left[:count], left[count:]
                errors = await self._send_part(part)
                done += [
                    (row, self._outcome(row, error))
                    for (row, _), error in zip(part, errors, strict=True)
                    if not isinstance(error, OutageError)
                ]
                self._note_confirmed(errors, destination)
                outage = next((error for error in errors if isinstance(error, OutageError)), None)
                if outage is None:
                    continue
                self._settle(done)
                done = []
                unsent = [each for each, error in zip(part, errors, strict=True) if isinstance(error, OutageError)]
                rows = [row for row, _ in unsent]
                if not await self._wait(outage, rows, destination, call, behind=[row for row, _ in left]):
                    await self._give_back(rows, destination)
                    continue
                done = [(row, _unchanged(row)) for row in rows if not self.pipeline.holds(row)]
                left = [each for each in unsent if self.pipeline.holds(each[0])] + left
        finally:
            self.destinations.leave(call)
        return done

    async def _send_part(self, part: Sequence[_Sendable]) -> list[Exception | None]:
        messages = [message for _, message in part]
        errors = await self.isolation.send([row for row, _ in part], lambda to: to.send_each(messages))
        return self._refuse_chosen(errors, messages[0].destination)

    async def _forward_run(self, rows: Sequence[OutboxRow]) -> list[_Done]:
        """Send the rows of a key up to the first that is retried; go on after one that is dead.

        If rows before it are done when one has to wait, return those: once they are settled, the others are free.
        """
        done: list[_Done] = []
        # The lease of the first row covers the others, also after the first is sent.
        left, holds_lease, call = list(rows), partial(self.pipeline.holds, rows[0]), object()
        try:
            while left:
                messages, error = self._make_first(left)
                destination = messages[0].destination if messages else ""
                if messages and not self.destinations.admits(destination, call):
                    error = _WAITS
                elif messages:
                    errors = await self._send_run(left, messages, holds_lease)
                    confirmed = sum(1 for _ in takewhile(lambda each: each is None, errors))
                    done += [(row, _SENT) for row in left[:confirmed]]
                    left = left[confirmed:]
                    self._note_confirmed(errors, destination)
                    error = errors[confirmed] if confirmed < len(errors) else error
                if isinstance(error, OutageError):
                    if await self._wait(error, left[:1], destination, call, behind=left[1:], keep=not done):
                        continue
                    if not done:
                        await self._give_back(rows[:1], destination)
                    break
                if error is not None:
                    outcome = self._outcome(left[0], error)
                    done.append((left[0], outcome))
                    if not isinstance(outcome, Dead):
                        break
                    left = left[1:]
        finally:
            self.destinations.leave(call)
        return done

    def _note_confirmed(self, errors: Sequence[Exception | None], destination: str) -> None:
        """Note that a destination has accepted something, and that the broker has, if it accepted all."""
        if None in errors:
            self.destinations.end(destination)
            if not any(isinstance(error, OutageError) for error in errors):
                self.outage.confirm()

    def _make_first(self, rows: Sequence[OutboxRow]) -> tuple[list[Outgoing], Exception | None]:
        """Make the messages of the first rows of a key that can be sent together; return why the next one has none."""
        messages = list[Outgoing]()
        for row in rows[: self.isolation.count_together(rows)]:
            made = self._make(row)
            if not isinstance(made, Outgoing):
                return messages, made
            if messages and self.target.by_destination and made.destination != messages[0].destination:
                break
            messages.append(made)
        return messages, None

    async def _send_run(
        self, rows: Sequence[OutboxRow], messages: Sequence[Outgoing], holds_lease: HoldsLease
    ) -> list[Exception | None]:
        """Send the first rows of a key; return None for each that is confirmed, then the error of the rest."""

        async def send(to: Target) -> list[Exception | None]:
            confirmed, error = await to.send_run(messages, holds_lease)
            if error is None:
                return [None] * confirmed
            together = isinstance(error, OutageError) and not self.target.one_of_a_key
            return [None] * confirmed + [error] * (len(messages) - confirmed if together else 1)

        errors = await self.isolation.send(rows[: len(messages)], send)
        return self._refuse_chosen(errors, messages[0].destination)

    def _refuse_chosen(self, errors: list[Exception | None], destination: str) -> list[Exception | None]:
        """Refuse rows that chose a destination that the relay has no right to.

        Rows for a destination that a route names, or that accepted messages before, wait: its rights may be back soon.
        """
        if self.destinations.knows(destination):
            return errors
        return [RefusedError(str(error)) if isinstance(error, NotAllowedError) else error for error in errors]

    async def _wait(
        self,
        error: OutageError,
        rows: Sequence[OutboxRow],
        destination: str,
        call: object,
        *,
        behind: Sequence[OutboxRow],
        keep: bool = True,
    ) -> bool:
        """Wait until rows that were not accepted can be sent again; return False if they are to be given back.

        They are given back, too, if operators have paused their queue meanwhile. The rows `behind` them are kept too.
        With `keep=False` do not wait, but note the outage, and return False.
        """
        if error is _WAITS:
            return False
        # A row that others have to prove guilty is given back, so that they are sent.
        keep = keep and not (len(rows) == 1 and self.isolation.lacks_proof(rows[0]))
        if isinstance(error, NotAcceptedError) and await self.outage.broker_answers():
            self.destinations.begin(destination, error)
            # While a suspect is in hand nothing else is claimed.
            keep = keep and not rows[0].suspect
            size = sum(row.size for row in (*rows, *behind))
            over = keep and await self.destinations.wait(destination, call, size)
        else:
            self.outage.begin(error)
            over = keep and await self.outage.wait_until_over()
        return over and not any(self.pipeline.is_paused(row.queue) for row in rows)

    def _settle(self, done: Sequence[_Done]) -> None:
        """Settle rows without a key before their call ends."""
        if done:
            self.pipeline.settle([row for row, _ in done], _settlements(done))

    async def _give_back(self, rows: Sequence[OutboxRow], destination: str) -> None:
        """Give back rows, or the run of a key by its first row; none has failed."""
        unproven = any(self.isolation.lacks_proof(row) for row in rows)
        delay = _UNPROVEN_DELAY if unproven else self.destinations.delay(destination, rows[0])
        await self.pipeline.give_back(rows, delay_seconds=delay)

    def _make(self, row: OutboxRow) -> Outgoing | Exception:
        try:
            destination = self.routes.destination(row)
            self.target.check(destination)
            return make_outgoing(row, destination, source=self.source, cloudevents=self.cloudevents)
        except RecursionError:
            return RefusedError("The headers are nested too deep to be read.")
        except (ValueError, OverflowError) as error:  # from the destination, the headers or the time of creation
            return RefusedError(str(error))
        except Exception as error:  # noqa: BLE001 - one row must not fail those that it was claimed with
            return error

    def _outcome(self, row: OutboxRow, error: Exception | None) -> Outcome:
        if error is None:
            return _SENT
        if isinstance(error, LeaseLostError):
            return _unchanged(row)
        delivery = OutboxDelivery.of(row)
        if isinstance(error, RefusedError | UnroutableError):
            delivery.verdict = Reject()
        return self.judge.outcome(delivery, error)


def _unchanged(row: OutboxRow) -> Retry:
    """Return the outcome that frees a row for its next claim and counts no attempt: the row did not fail."""
    return Retry(0.0, row.attempts_count)


def _settlements(done: Sequence[_Done]) -> list[Settlement]:
    return [Settlement(row.lease, outcome) for row, outcome in done]
