"""Keys that wait: parked, stopped by an operator, retried for long, behind a delayed message."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from faststream_outbox import NoRetry
from faststream_outbox.operations import DoctorLimits, MessageFilter, OutboxOperations
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.schema.operations_tables import OperationsTables
from tests.backends import PostgresBackend
from tests.broker.brokers import broker_on, started
from tests.operations.doctor.visits import find, named, visit
from tests.waiting import until


async def test_keys_that_are_parked_are_named(postgres: PostgresBackend) -> None:
    broker = broker_on(postgres)

    @broker.subscriber("q", retry_strategy=NoRetry(), on_dead="park")
    async def handle(_number: int) -> None:
        raise ValueError

    async with postgres.transaction() as session:
        keys = ["a", "b", "c", "d"]
        await broker.publish_batch(1, 2, 3, 4, queue="q", session=session, keys=keys)
    async with started(broker):
        await until(
            lambda: postgres.one("SELECT count(*) FROM outbox WHERE next_attempt_at = 'infinity'"), lambda n: n == 4
        )
    finding = await named(postgres, "keys")
    assert finding.severity == "warning"
    assert finding.what == "4 keys of queue 'q' are parked: 'a', 'b', 'c' and others."
    assert finding.since is not None
    assert "faststream-outbox keys show q a" in finding.commands
    assert finding.commands[-1] == "faststream-outbox keys retry q a --reason WHY"
    assert finding.alternatives == ("faststream-outbox keys skip q a --reason WHY",)
    async with postgres.transaction() as session:
        for key in keys:
            await broker.skip_key(queue="q", key=key, reason="seen", session=session)
    assert await find(postgres, "keys") == []


async def test_a_key_that_fails_for_long_is_named(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("q", b"1", key="k"))
    await postgres.run(
        "UPDATE outbox SET attempts_count = 9, first_attempt_at = now(), next_attempt_at = now() + interval '1 day'"
    )
    assert await visit(postgres) == []
    await postgres.pass_time(3600)
    finding = await named(postgres, "keys")
    assert finding.what == "1 key of queue 'q' is retrying: 'k'."


async def test_keys_that_were_not_looked_at_are_named(
    postgres: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faststream_outbox.storage.postgres.statements.examine.rows.MOST_KEYS", 5)
    await postgres.insert(*(NewRow("q", b"1", key=f"k{number}") for number in range(6)))
    finding = await named(postgres, "keys")
    assert (finding.severity, "keys were looked at" in finding.what) == ("info", True)


@pytest.fixture
def operations(postgres: PostgresBackend, tables: OperationsTables) -> OutboxOperations:
    return OutboxOperations(
        postgres.engine, outbox_table=postgres.outbox_table, dlq_table=postgres.dlq_table, audit_table=tables.audit
    )


async def test_keys_that_an_operator_stopped_are_worth_knowing(
    postgres: PostgresBackend, tables: OperationsTables, operations: OutboxOperations
) -> None:
    await operations.hold_key("accounts", "H1", reason="never mind", by="zoe")
    await operations.release_key("accounts", "H1", reason="r")
    await operations.hold_key("accounts", "H1", reason="account merge.", by="ann")
    finding = await named(postgres, "keys", audit_table=tables.audit)
    assert finding.severity == "info"
    assert finding.what == "1 key of queue 'accounts' was stopped by an operator: 'H1' by ann (account merge)."
    assert finding.since is not None
    assert finding.commands == (
        "faststream-outbox keys show accounts H1",
        "faststream-outbox keys release accounts H1 --reason WHY",
    )
    assert finding.alternatives == ()
    assert "'H1' (account merge)" in (await named(postgres, "keys")).what  # without an audit
    [late] = await find(postgres, "keys", limits=DoctorLimits(pause_seconds=0.0))
    assert (late.severity, "may be forgotten" in late.why) == ("warning", True)
    assert await operations.release_key("accounts", "H1", reason="r")
    assert await visit(postgres) == []


async def test_keys_that_an_operator_stopped_are_not_among_those_that_failed(
    postgres: PostgresBackend, operations: OutboxOperations
) -> None:
    await postgres.insert(*(NewRow("q", b"1", key=key) for key in "abcdef"))
    for key in "bcde":
        await operations.park_key("q", key, reason=f"see {key}")
    await postgres.run("UPDATE outbox SET next_attempt_at = 'infinity' WHERE entity_key = 'a'")
    parked, held = await find(postgres, "keys")
    assert parked.what == "1 key of queue 'q' is parked: 'a'."
    assert (
        held.what
        == "4 keys of queue 'q' were stopped by an operator: 'b' (see b); 'c' (see c); 'd' (see d) and others."
    )
    assert held.commands[0] == "faststream-outbox keys list --queue q --state parked"


async def retry(operations: OutboxOperations) -> object:
    return await operations.retry_key("q", "D1", reason="r")


async def skip(operations: OutboxOperations) -> object:
    return await operations.skip_key("q", "D1", reason="r")


async def deliver_now(operations: OutboxOperations) -> object:
    return (await operations.deliver_now(await operations.select(MessageFilter(key="D1")), reason="r")).done


@pytest.mark.parametrize("cure", [retry, skip, deliver_now])
async def test_due_messages_behind_a_delayed_one_are_named(
    postgres: PostgresBackend, operations: OutboxOperations, cure: Callable[[OutboxOperations], Awaitable[object]]
) -> None:
    await postgres.insert(
        NewRow("q", b"1", key="D1", activate_in=timedelta(days=10)),
        *(NewRow("q", b"3", key="D1") for _ in range(3)),
    )
    assert await visit(postgres) == []  # they may have been published a moment ago
    await postgres.pass_time(3600)
    finding = await named(postgres, "keys")
    assert finding.severity == "warning"
    assert finding.what.startswith("1 key of queue 'q' waits behind its first message, which is not due before 20")
    assert finding.what.endswith("Z: 'D1'.")
    assert finding.since == await postgres.one("SELECT min(next_attempt_at) FROM outbox")
    assert finding.commands[-1] == "faststream-outbox keys retry q D1 --reason WHY"
    assert finding.alternatives == ("faststream-outbox keys skip q D1 --reason WHY",)
    assert await cure(operations)
    assert await find(postgres, "keys") == []


async def test_messages_behind_a_delayed_one_that_are_delayed_too_are_not_named(postgres: PostgresBackend) -> None:
    later = timedelta(days=10)
    await postgres.insert(*(NewRow("q", b"1", key="k", activate_in=later) for _ in range(3)))
    await postgres.pass_time(3600)
    assert await visit(postgres) == []
