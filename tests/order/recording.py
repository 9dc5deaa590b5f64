"""A broker's store that tells of all it claims and settles.

What covers several rows is told of each of them: the lease of a key's first row is renewed, ended and lost for those
behind it as well, and whoever settles the first rows of a run gives the rest back.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from faststream_outbox.storage import (
    Claim,
    Lease,
    NewRow,
    OutboxRow,
    PostgresStore,
    SettleInterruptedError,
    Settlement,
    SharedTransaction,
)
from faststream_outbox.storage.contract import SentClaim, ServerProcess
from faststream_outbox.storage.ordering import RunClaim
from faststream_outbox.storage.postgres.drivers import Executor
from tests.soak.encoding import claimed_row, uid, verb_of
from tests.soak.history import Answered, Ask, Asked, Claimed, Claiming, Crashed, HistoryWriter, Sure, Verb

# What is asked for the rows that one lease covers.
_Question = dict[Lease, list[Ask]]


class Recorder:
    """The history of one process, and which rows each of its leases covers."""

    def __init__(self, history: HistoryWriter) -> None:
        self.history = history
        self._covered: dict[Lease, dict[int, str]] = {}

    def claiming(self, *, suspect: bool, lease_seconds: float) -> str:
        """Tell that a claim is sent."""
        return self.history.write(Claiming, self.history.new_name(), suspect, lease_seconds).call

    def claimed(self, call: str, expires_at: float, runs: Sequence[Sequence[OutboxRow]]) -> None:
        """Tell what it brought; the first row of each run has the lease."""
        for rows in runs:
            self._covered[rows[0].lease] = {row.id: uid(row) for row in rows}
        self.history.write(Claimed, call, expires_at, [claimed_row(row) for rows in runs for row in rows])

    def asks(self, lease: Lease, verbs: dict[int, tuple[Verb, float]], rest: tuple[Verb, float]) -> list[Ask]:
        """Say what is asked for the rows that a lease covers: for some of them, and for the rest."""
        covered = self._covered[lease]
        return [Ask(name, lease.token.hex, *verbs.get(row_id, rest)) for row_id, name in covered.items()]

    def asks_of(self, settlement: Settlement) -> list[Ask]:
        """Say what is asked by a settlement: it gives back the rest, or passes the lease to it."""
        asks = self.asks(settlement.lease, _verbs(settlement), ("release", 0.0))
        if settlement.next_head is None:
            return asks
        return [ask for ask in asks if ask.verb != "release"]

    def passed(self, settlements: Iterable[Settlement]) -> None:
        """Note which rows leases cover that were passed on."""
        for each in settlements:
            if each.next_head is not None:
                covered, done = self._covered[each.lease], _verbs(each)
                rest = {row_id: name for row_id, name in covered.items() if row_id not in done}
                self._covered[Lease(each.next_head, each.lease.token)] = rest

    def asked(self, question: _Question) -> str:
        """Tell what is asked."""
        asks = [ask for group in question.values() for ask in group]
        return self.history.write(Asked, self.history.new_name(), asks).call

    def answered(self, call: str, question: _Question, held: Iterable[Lease], *, complete: bool = True) -> None:
        """Tell which leases held."""
        rows = [(ask.uid, ask.token) for lease in held for ask in question[lease]]
        self.history.write(Answered, call, rows, complete)


class RecordedLane:
    """One lane of the store; what nobody has to know of goes straight through."""

    def __init__(self, lane: Any, recorder: Recorder) -> None:
        self._lane = lane
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    @property
    def sent(self) -> SentClaim | None:
        """The claim that was sent last."""
        sent: SentClaim | None = self._lane.sent
        return sent

    @sent.setter
    def sent(self, sent: SentClaim | None) -> None:
        self._lane.sent = sent

    async def claim(self, *args: Any, lease_seconds: float, **options: Any) -> Claim:
        """Claim rows without a key."""
        return await self._claim(self._lane.claim, *args, lease_seconds=lease_seconds, **options)

    async def claim_suspect(self, *args: Any, lease_seconds: float, **options: Any) -> Claim:
        """Claim a row without a key whose lease ran out."""
        return await self._claim(self._lane.claim_suspect, *args, suspect=True, lease_seconds=lease_seconds, **options)

    async def _claim(
        self, claim: Any, *args: Any, lease_seconds: float, suspect: bool = False, **options: Any
    ) -> Claim:
        call = self._recorder.claiming(suspect=suspect, lease_seconds=lease_seconds)
        result: Claim = await claim(*args, lease_seconds=lease_seconds, **options)
        self._recorder.claimed(call, result.expires_at, [[row] for row in result.rows])
        return result

    async def claim_runs(self, *args: Any, lease_seconds: float, suspects: bool = False, **options: Any) -> RunClaim:
        """Claim keys."""
        call = self._recorder.claiming(suspect=suspects, lease_seconds=lease_seconds)
        result: RunClaim = await self._lane.claim_runs(*args, lease_seconds=lease_seconds, suspects=suspects, **options)
        self._recorder.claimed(call, result.expires_at, [run.rows for run in result.runs])
        return result

    async def renew(self, leases: Iterable[Lease], *, lease_seconds: float) -> frozenset[Lease]:
        """Lengthen leases."""
        leases = list(leases)
        question = {lease: self._recorder.asks(lease, {}, ("renew", lease_seconds)) for lease in leases}
        call = self._recorder.asked(question)
        held: frozenset[Lease] = await self._lane.renew(leases, lease_seconds=lease_seconds)
        self._recorder.answered(call, question, held)
        return held

    async def release(self, rows: Iterable[OutboxRow], *, delay_seconds: float = 0.0) -> frozenset[Lease]:
        """Give rows back."""
        rows = list(rows)
        question = {row.lease: self._recorder.asks(row.lease, {}, ("release", 0.0)) for row in rows}
        call = self._recorder.asked(question)
        held: frozenset[Lease] = await self._lane.release(rows, delay_seconds=delay_seconds)
        self._recorder.answered(call, question, held)
        return held

    async def settle(self, settlements: Iterable[Settlement]) -> Any:
        """Write outcomes."""
        settlements = list(settlements)
        question = {each.lease: self._recorder.asks_of(each) for each in settlements}
        call = self._recorder.asked(question)
        try:
            settled = await self._lane.settle(settlements)
        except SettleInterruptedError as error:
            self._recorder.answered(call, question, error.settled.held, complete=False)
            self._recorder.passed(each for each in settlements if each.lease in error.settled.held)
            raise
        self._recorder.answered(call, question, settled.held)
        self._recorder.passed(each for each in settlements if each.lease in settled.held)
        for lease, failure in settled.failed.items():
            self._recorder.history.write(Crashed, f"{lease} could not be settled: {failure!r}")
        return settled


class RecordedTransaction(SharedTransaction):
    """A handler's transaction; when its commit is not answered, nobody knows."""

    recorder: Recorder

    async def settle(self, leases: Sequence[Lease], outputs: Sequence[NewRow], *, head: Lease | None = None) -> bool:
        """Delete the rows with what the handler wrote."""
        acked: dict[int, tuple[Verb, float]] = {lease.row_id: ("ack", 0.0) for lease in leases}
        covering = leases if head is None else [head]
        question = {lease: self.recorder.asks(lease, acked, ("release", 0.0)) for lease in covering}
        call = self.recorder.asked(question)
        committed = await super().settle(leases, outputs, head=head)
        # One that was lost takes the others back with it, which is no news of theirs.
        self.recorder.answered(call, question, question if committed else (), complete=committed or len(question) == 1)
        return committed


def record(store: PostgresStore, history: HistoryWriter) -> None:
    """Have a store tell its history."""
    recorder = Recorder(history)
    make_lane, share = store.lane, store.share_transaction

    def lane(executor: Executor, process: ServerProcess | None = None) -> Any:
        return RecordedLane(make_lane(executor, process), recorder)

    def share_transaction(leases: Sequence[Lease]) -> SharedTransaction:
        shared = share(leases)
        recorded = RecordedTransaction(shared.session, shared._delete, shared._lock)
        recorded.recorder = recorder
        return recorded

    own = store.nodes.own
    confirm = own._confirm

    def confirm_and_record(at: float) -> None:
        confirm(at)
        history.write(Sure, f"{own.id:012x}", own.sure_until, own._owned_since)

    own._confirm = confirm_and_record  # type: ignore[method-assign] # as below
    store.lane = lane  # type: ignore[method-assign] # the broker has made its store already
    store.share_transaction = share_transaction  # type: ignore[method-assign] # same


def _verbs(settlement: Settlement) -> dict[int, tuple[Verb, float]]:
    return {row_id: verb_of(outcome) for row_id, outcome in settlement.outcomes}
