"""What cannot work is refused where it is written, with a sentence that helps."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import SetupError
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import ConstantRetry, NoRetry, OutboxBroker, OutboxRouter, make_dlq_table, make_outbox_table
from faststream_outbox.fastapi import OutboxRouter as FastAPIRouter
from faststream_outbox.router import OutboxRoute

TABLE = make_outbox_table(MetaData())

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queues": ""}, ValueError, "queue is empty"),
    ({"queues": []}, ValueError, "needs a queue"),
    ({"queues": ["a", "a"]}, ValueError, "twice"),
    ({"queues": ["a", "b" * 256]}, ValueError, "256 characters"),
    ({"max_workers": 0}, ValueError, "max_workers is 1 or more"),
    ({"max_workers": True}, TypeError, "max_workers is a whole number"),
    ({"max_workers": 1.5}, TypeError, "max_workers is a whole number"),
    ({"max_workers": 10**30}, ValueError, "max_workers is 10000 at most, not 1000.*start more processes"),
    ({"max_workers": 10**5000}, ValueError, "max_workers is 10000 at most, not a number of about 5000 digits"),
    *(
        ({name: 100_001, "batch": True}, ValueError, f"{name} is 100000 at most, not 100001: .*save nothing")
        for name in ("fetch_batch_size", "max_records", "terminal_batch_size", "retry_batch_size")
    ),
    ({"fetch_batch_size": 0}, ValueError, "fetch_batch_size"),
    ({"min_fetch_interval": 0}, ValueError, "min_fetch_interval is more than 0"),
    ({"max_fetch_interval": float("inf")}, ValueError, "max_fetch_interval is a finite number"),
    ({"min_fetch_interval": 5, "max_fetch_interval": 1}, ValueError, "more than max_fetch_interval"),
    ({"lease_ttl_seconds": 0}, ValueError, "lease_ttl_seconds is more than 0"),
    ({"lease_ttl_seconds": float("nan")}, ValueError, "lease_ttl_seconds is a finite number"),
    ({"lease_ttl_seconds": -1}, ValueError, "lease_ttl_seconds"),
    ({"lease_ttl_seconds": 10**400}, ValueError, "lease_ttl_seconds is a finite number"),
    ({"max_deliveries": 0}, ValueError, "max_deliveries"),
    ({"max_deliveries": True}, TypeError, "max_deliveries"),
    ({"terminal_batch_size": 0}, ValueError, "terminal_batch_size"),
    ({"terminal_flush_interval_ms": -1}, ValueError, "terminal_flush_interval_ms"),
    ({"retry_batch_size": 0}, ValueError, "retry_batch_size"),
    ({"retry_flush_interval_ms": float("inf")}, ValueError, "retry_flush_interval_ms"),
    ({"retry_flush_interval_ms": 40_000}, ValueError, "well below lease_ttl_seconds"),
    ({"retry_strategy": NoRetry}, TypeError, "not the class of one: NoRetry"),
    ({"retry_strategy": object()}, TypeError, "get_next_attempt_at"),
    ({"ack_policy": AckPolicy.ACK_FIRST}, SetupError, "would lose it"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_options(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    with pytest.raises(error, match=words):
        broker.subscriber(**{"queues": "q", **wrong})
    assert broker.subscribers == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("terminal_flush_batch_size", "terminal_batch_size"), ("title_", "title"), ("description_", "description")],
)
def test_an_option_of_the_original_package_is_refused_with_its_name_here(old: str, new: str) -> None:
    options: dict[str, Any] = {old: 1}

    async def handle(_number: int) -> None: ...

    broker = OutboxBroker(outbox_table=TABLE)
    router = FastAPIRouter(create_async_engine("postgresql+asyncpg://h/d"), outbox_table=TABLE)
    for declare in (broker.subscriber, OutboxRouter().subscriber, router.subscriber):
        with pytest.raises(TypeError, match=f"{old!r}: it is named {new!r}"):
            declare("q", **options)
    with pytest.raises(TypeError, match=f"it is named {new!r}"):
        OutboxRouter(handlers=[OutboxRoute(handle, "q", **options)])
    assert broker.subscribers == []
    assert old not in inspect.signature(broker.subscriber).parameters
    assert new in inspect.signature(broker.subscriber).parameters


SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"ack_policy": AckPolicy.REJECT_ON_ERROR, "retry_strategy": ConstantRetry(delay_seconds=1)}, "hardly ever asked"),
    ({"ack_policy": AckPolicy.ACK, "retry_strategy": ConstantRetry(delay_seconds=1)}, "hardly ever asked"),
    ({"ack_policy": AckPolicy.NACK_ON_ERROR, "retry_strategy": NoRetry()}, "first failure is final.*REJECT_ON_ERROR"),
    ({"max_deliveries": 1, "retry_strategy": ConstantRetry(delay_seconds=1)}, "max_deliveries=1"),
]


@pytest.mark.parametrize(("options", "words"), SENSELESS)
def test_senseless_combinations_warn(options: dict[str, Any], words: str) -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    with pytest.warns(RuntimeWarning, match=words) as caught:
        broker.subscriber("q", **options)
    assert caught[0].filename == __file__


def test_defaults_and_sensible_combinations_do_not_warn() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    broker.subscriber("a")
    broker.subscriber("b", ack_policy=AckPolicy.REJECT_ON_ERROR)
    broker.subscriber("c", retry_strategy=NoRetry(), max_deliveries=1)
    broker.subscriber(("d", "e"), max_workers=500)
    broker.subscriber("f", retry_strategy=NoRetry())
    for policy in (AckPolicy.REJECT_ON_ERROR, AckPolicy.ACK, AckPolicy.MANUAL):
        broker.subscriber("g", retry_strategy=NoRetry(), ack_policy=policy)


def test_a_policy_of_the_broker_warns_too() -> None:
    broker = OutboxBroker(outbox_table=TABLE, ack_policy=AckPolicy.NACK_ON_ERROR)
    with pytest.warns(RuntimeWarning, match="first failure is final"):
        broker.subscriber("q", retry_strategy=NoRetry())
    broker.subscriber("q", retry_strategy=NoRetry(), ack_policy=AckPolicy.REJECT_ON_ERROR)


def late_policy() -> None:
    router = OutboxRouter()
    router.subscriber("q", retry_strategy=NoRetry())
    outer = OutboxRouter(prefix="a-", routers=[router])
    OutboxBroker(outbox_table=TABLE, ack_policy=AckPolicy.NACK_ON_ERROR).include_router(outer)


def late_policy_of_a_broker_with_routers() -> None:
    router = OutboxRouter(prefix="a-")
    router.subscriber("q", retry_strategy=NoRetry())
    OutboxBroker(outbox_table=TABLE, ack_policy=AckPolicy.NACK_ON_ERROR, routers=[router])


def policy_of_a_router() -> None:
    router = OutboxRouter(prefix="a-", ack_policy=AckPolicy.NACK_ON_ERROR)
    router.subscriber("q", retry_strategy=NoRetry())
    OutboxBroker(outbox_table=TABLE, routers=[router])


def route() -> None:
    handlers = [OutboxRoute(print, "q", retry_strategy=NoRetry(), ack_policy=AckPolicy.NACK_ON_ERROR)]
    OutboxRouter(prefix="a-", handlers=handlers)


def fastapi_router() -> None:
    router = FastAPIRouter(outbox_table=TABLE)
    router.subscriber("a-q", retry_strategy=NoRetry(), ack_policy=AckPolicy.NACK_ON_ERROR)


def late_policy_of_a_fastapi_router() -> None:
    router = OutboxRouter(prefix="a-")
    router.subscriber("q", retry_strategy=NoRetry())
    FastAPIRouter(outbox_table=TABLE, ack_policy=AckPolicy.NACK_ON_ERROR).include_router(router)


@pytest.mark.parametrize(
    "declare",
    [
        late_policy,
        late_policy_of_a_broker_with_routers,
        policy_of_a_router,
        route,
        fastapi_router,
        late_policy_of_a_fastapi_router,
    ],
    ids=lambda declare: declare.__name__,
)
def test_a_contradiction_warns_once_with_its_queue_at_a_line_of_the_user(declare: Callable[[], None]) -> None:
    with pytest.warns(RuntimeWarning, match="^Subscriber of 'a-q': .*first failure is final") as caught:
        declare()
    assert [warning.filename for warning in caught] == [__file__]


def test_each_subscriber_of_a_loop_has_its_warning() -> None:
    broker = OutboxBroker(outbox_table=TABLE, ack_policy=AckPolicy.NACK_ON_ERROR)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for queue in ("a", "b"):
            broker.subscriber(queue, retry_strategy=NoRetry())
    assert [str(warning.message)[:18] for warning in caught] == ["Subscriber of 'a':", "Subscriber of 'b':"]


def test_a_strategy_with_either_method_will_do() -> None:
    class OnlyDelay:
        def get_next_attempt_delay(self, **_attempt: Any) -> float | None:
            return 1.0

    OutboxBroker(outbox_table=TABLE).subscriber("q", retry_strategy=OnlyDelay())


def test_a_broker_needs_its_tables() -> None:
    with pytest.raises(TypeError, match="make_outbox_table"):
        OutboxBroker(outbox_table="outbox")  # type: ignore[arg-type] # that is the point
    with pytest.raises(TypeError, match="make_dlq_table"):
        OutboxBroker(outbox_table=TABLE, dlq_table="dlq")  # type: ignore[arg-type] # same
    OutboxBroker(outbox_table=TABLE, dlq_table=make_dlq_table(MetaData()))


def test_ack_first_is_refused_wherever_it_comes_from() -> None:
    with pytest.raises(SetupError, match="would lose it"):
        OutboxBroker(outbox_table=TABLE, ack_policy=AckPolicy.ACK_FIRST).subscriber("q")
    with pytest.raises(SetupError, match="would lose it"):
        OutboxRouter(ack_policy=AckPolicy.ACK_FIRST).subscriber("q")


@pytest.mark.parametrize("options", [{"queue": ""}, {"queue": "q", "headers": {"a": "\x00"}}, {"queue": "q" * 300}])
def test_wrong_publishers(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"empty|NUL|300"):
        OutboxBroker(outbox_table=TABLE).publisher(**options)


async def test_a_prefix_can_make_a_queue_too_long() -> None:
    broker = OutboxBroker(outbox_table=TABLE)
    router = OutboxRouter(prefix="p" * 200)

    @router.subscriber("q" * 100)
    async def handle(_body: bytes) -> None: ...

    broker.include_router(router)
    with pytest.raises(ValueError, match="300 characters"):
        await next(iter(broker.subscribers)).start()


def test_only_routers_of_the_outbox_are_included() -> None:
    with pytest.raises(TypeError, match="OutboxRouter, not object"):
        OutboxBroker(outbox_table=TABLE).include_router(object())  # type: ignore[arg-type] # that is the point


def test_the_document_tells_no_secrets() -> None:
    engine = create_async_engine("postgresql+asyncpg://somebody:secret@db.internal:5433/app?ssl=require")
    broker = OutboxBroker(engine, outbox_table=TABLE)
    assert broker.specification.url == ["postgresql://db.internal:5433/app"]
