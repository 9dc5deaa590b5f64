"""What each role does, all of it: a right that is missing makes something here raise."""

from datetime import timedelta
from uuid import uuid4

from sqlalchemy import Table

from faststream_outbox.operations import DeadLetterFilter, MessageFilter, RoleKind
from faststream_outbox.storage import Ack, Dead, Lease, NewRow, OutboxRow, Outcome, Park, Retry, Settlement
from faststream_outbox.storage.operating.registry import NodeEntry
from faststream_outbox.storage.ordering import HeadLease, KeyCursor, ShardHolder
from faststream_outbox.storage.postgres.inbox import InboxStore
from faststream_outbox.storage.schema.tables import quoted_name
from tests.broker.brokers import broker_on, started
from tests.operations.grants.shop import Shop
from tests.operations.letters import bury


async def prepare(owner: Shop) -> None:
    """Put in what operators and viewers look at: messages, keys, timers, dead letters, a pause, an audit, a node."""
    await owner.empty()
    await bury(owner, *(NewRow("dead", b"%d" % number) for number in range(9)))
    rows = [NewRow("q", b"1", headers={"correlation_id": "c"}) for _ in range(5)]
    keyed = [NewRow("keys", b"1", key=f"k{number}") for number in range(4)]
    timers = [NewRow("timers", b"1", timer_id=each, activate_in=timedelta(hours=1)) for each in ("a", "b")]
    await owner.insert(*rows, *keyed, *timers)
    await owner.operations.discard(await _ids(owner, "q", 1), reason="test")
    await _register(owner)


async def _register(shop: Shop) -> None:
    assert shop.store.registry is not None
    await shop.store.registry.write(NodeEntry("n", "h", 1, "1", ("q",), "HeadLease", age=1.0))


async def _ids(shop: Shop, queue: str, number: int) -> list[int]:
    page = await shop.operations.messages(MessageFilter(queue=queue), limit=number)
    return [message.id for message in page.items]


async def produce(mine: Shop, _owner: Shop) -> None:
    """Publish, in all ways."""
    broker = broker_on(mine, dlq_table=None, shards_table=None)
    async with started(broker), mine.transaction() as session:
        assert await broker.publish(1, queue="q", session=session)
        assert await broker.publish(2, queue="q", session=session, key="k")
        assert len(await broker.publish_batch(3, 4, queue="q", session=session)) == 2
        assert len(await broker.publish_batch(5, 6, queue="q", session=session, keys=["k", None])) == 2
        assert await broker.publish(7, queue="q", session=session, timer_id="t", activate_in=timedelta(hours=1))
        assert await broker.publish(8, queue="q", session=session, timer_id="t") is None
        assert await broker.ping()
        await broker.validate_schema()


async def consume(mine: Shop, owner: Shop) -> None:
    """Claim, settle in all ways, publish, share shards, obey pauses, record what an inbox handled."""
    await owner.empty()
    store = mine.store
    assert await store.look() == []
    await mine.insert(*(NewRow("q", b"1") for _ in range(4)))
    claimed = await mine.claim("q")
    assert len(claimed.rows) == 4
    done, failed, dead, back = claimed.rows
    outcomes: list[tuple[OutboxRow, Outcome]] = [
        (done, Ack((NewRow("answers", b"2"),))),
        (failed, Retry(1.0, 1)),
        (dead, Dead("rejected", None, 1)),
    ]
    async with store.connect() as lane:
        settled = await lane.settle([Settlement(row.lease, outcome) for row, outcome in outcomes])
        assert len(settled.held) == 3
        assert await lane.renew([back.lease], lease_seconds=60.0)
        assert await lane.release([back])
        await _consume_keys(mine)
        holder = ShardHolder(uuid4(), "me")
        assert await lane.share_shards(holder, ["q"], count=4, lease_seconds=6.0)
        await lane.leave_shards(holder, ["q"])
        await lane.unserved([])
        await lane.stats()
    await _use_inbox(mine)
    await _register(mine)
    assert store.registry is not None
    await store.registry.remove_dead([])
    assert await mine.run(f"SELECT * FROM {_name(mine.operations_tables.nodes)}") == []
    assert await mine.run(f"SELECT * FROM {_name(mine.operations_tables.control)}") == []


async def _consume_keys(mine: Shop) -> None:
    await mine.insert(*(NewRow("keys", b"1", key=key) for key in ("a", "a", "b")))
    cursor = KeyCursor(["keys"], ordering=HeadLease())
    async with mine.store.connect() as lane:
        heads = list[Lease]()
        for _ in range(10):  # a claimer begins at a random key
            claim = await lane.claim_runs(cursor, keys=10, rows_per_key=10, lease_seconds=60.0)
            heads += [run.rows[0].lease for run in claim.runs]
        parked = Settlement(heads[1], Park(Dead("rejected", None, 1)))
        assert len((await lane.settle([Settlement(heads[0], Ack()), parked])).held) == 2


async def _use_inbox(mine: Shop) -> None:
    inbox = InboxStore(mine.engine, mine.inbox_table)
    transaction = await inbox.begin("me", "1")
    assert transaction is not None
    await transaction.end()
    assert await inbox.begin("me", "1") is None
    assert await inbox.clean("me", retention=timedelta(0), limit=10) == 1


async def operate(mine: Shop, owner: Shop) -> None:
    """Do every act."""
    await prepare(owner)
    operations = mine.operations
    messages, timers = await _ids(mine, "q", 3), ("timers", "a")
    assert (await operations.move(messages[:1], "elsewhere", reason="r")).done == 1
    assert (await operations.discard(messages[1:2], reason="r")).done == 1
    assert await operations.fire_timer(*timers, reason="r")
    assert (await operations.deliver_now(await _ids(mine, "timers", 2), reason="r")).done >= 1
    assert await operations.cancel_timer(*timers, reason="r")
    assert await operations.park_key("keys", "k0", reason="r")
    assert await operations.release_key("keys", "k0", reason="r")
    assert await operations.retry_key("keys", "k1", reason="r")
    assert await operations.skip_key("keys", "k2", reason="r")
    assert await operations.hold_key("keys", "new", reason="r")
    selection = await operations.select(DeadLetterFilter(queue="dead"))
    letters = [letter.id for letter in (await operations.dead_letters(DeadLetterFilter(queue="dead"))).items]
    assert (await operations.edit_and_replay(letters[0], body={"n": 1}, reason="r")).done == 1
    assert (await operations.replay(letters[1:3], reason="r")).done == 2
    # In slices of two: the audit of one act is written once, and counts on.
    assert (await operations.purge(selection, reason="r")).done == 6
    await _pause(mine)
    await _pause(mine)
    await mine.run(f"DELETE FROM {_name(mine.operations_tables.control)} WHERE queue = 'q'")
    assert len((await operations.audit()).items) > 10
    assert [node.queues for node in await operations.nodes()] == [("q",)]
    await _ask_doctor(mine, "operator")


async def view(mine: Shop, owner: Shop) -> None:
    """Read all that can be read."""
    await prepare(owner)
    await _pause(owner)
    operations = mine.operations
    assert len(await operations.queues()) == 4
    [first] = (await operations.messages(MessageFilter(queue="q"), limit=1)).items
    assert await operations.message(first.id)
    assert (await operations.find(correlation_id="c")).messages
    assert (await operations.timers()).items
    await operations.keys()
    assert await operations.key("keys", "k0")
    [letter] = (await operations.dead_letters(limit=1)).items
    assert await operations.dead_letter(letter.id)
    assert await operations.dead_letter_groups()
    selection = await operations.select(DeadLetterFilter())
    assert len([each async for each in operations.export(selection)]) == 9
    assert await mine.run(f"SELECT * FROM {_name(mine.operations_tables.control)}")
    assert (await operations.audit()).items
    assert [node.queues for node in await operations.nodes()] == [("q",)]
    await _ask_doctor(mine, "viewer")


async def _ask_doctor(mine: Shop, kind: RoleKind) -> None:
    """Ask the doctor; not for the rights, which it finds missing by the same list that is tested here."""
    findings = await mine.operations.doctor(kind=kind)
    assert [finding for finding in findings if "failed: " in finding.what] == []


def _name(table: Table) -> str:
    return quoted_name(table.name, table.schema)


async def _pause(shop: Shop) -> None:
    await shop.run(
        f"""INSERT INTO {_name(shop.operations_tables.control)} (queue, reason, "by") VALUES ('q', 'r', 'me')
        ON CONFLICT (queue, kind) DO UPDATE SET reason = excluded.reason"""
    )
