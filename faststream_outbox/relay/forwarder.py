"""Sends rows to a target, and decides the outcome of each by its confirmation or error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from faststream_outbox.message import OutboxDelivery, Reject
from faststream_outbox.relay.outage import Outage
from faststream_outbox.relay.outgoing import Outgoing, make_outgoing
from faststream_outbox.relay.routing import Routes, UnroutableError
from faststream_outbox.relay.targets.base import HoldsLease, LeaseLostError, OutageError, RefusedError, SentRun, Target
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.judge import Judge

_SENT = Ack()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarder:
    """Sends rows: those of one key in order, those without a key together."""

    target: Target
    routes: Routes
    judge: Judge
    outage: Outage
    holds_lease: Callable[[OutboxRow], bool]
    source: str
    cloudevents: bool

    async def forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send rows that have the same key, or no key; keep them through an outage and send them after it."""
        send = self._forward_each if rows[0].entity_key is None else self._forward_run
        return await send(rows)

    async def _forward_each(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        settlements: list[Settlement] = []
        left = list(rows)
        while left:
            made = [self._make(row) for row in left]
            sent = iter(await self.target.send_each([each for each in made if isinstance(each, Outgoing)]))
            errors = [next(sent) if isinstance(each, Outgoing) else each for each in made]
            unsent, outage = list[OutboxRow](), None
            for row, error in zip(left, errors, strict=True):
                if isinstance(error, OutageError):
                    unsent.append(row)
                    outage = error
                else:
                    settlements.append(Settlement(row.lease, self._outcome(row, error)))
            if outage is None:
                break
            await self.outage.wait_until_over(outage)
            left = []
            for row in unsent:
                if self.holds_lease(row):
                    left.append(row)
                else:
                    settlements.append(Settlement(row.lease, _unchanged(row)))
        return settlements

    async def _forward_run(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send the rows of a key up to the first that is retried; go on after one that is dead."""
        settlements: list[Settlement] = []
        # The lease of the first row covers the others, also after the first is sent.
        left, holds_lease = list(rows), partial(self.holds_lease, rows[0])
        while left:
            confirmed, error = await self._send_first(left, holds_lease)
            settlements += [Settlement(row.lease, _SENT) for row in left[:confirmed]]
            left = left[confirmed:]
            if error is None:
                break
            if isinstance(error, OutageError):
                await self.outage.wait_until_over(error)
                continue
            outcome = self._outcome(left[0], error)
            settlements.append(Settlement(left[0].lease, outcome))
            if not isinstance(outcome, Dead):
                break
            left = left[1:]
        return settlements

    async def _send_first(self, rows: Sequence[OutboxRow], holds_lease: HoldsLease) -> SentRun:
        """Send the first rows of a key, up to one of which no message can be made."""
        messages = list[Outgoing]()
        for row in rows:
            made = self._make(row)
            if not isinstance(made, Outgoing):
                sent = await self.target.send_run(messages, holds_lease) if messages else SentRun(0)
                return sent if sent.error is not None else SentRun(sent.confirmed, made)
            messages.append(made)
        return await self.target.send_run(messages, holds_lease)

    def _make(self, row: OutboxRow) -> Outgoing | Exception:
        try:
            destination = self.routes.destination(row)
            self.target.check(destination)
            return make_outgoing(row, destination, source=self.source, cloudevents=self.cloudevents)
        except UnroutableError as error:
            return error
        except ValueError as error:  # from the destination or the headers
            return RefusedError(str(error))

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
