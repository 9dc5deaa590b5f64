"""What failed last is kept with a row that waits for its retry, and is seen by operators only."""

import pytest

from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import Dead, NewRow, OutboxRow, Park, Retry, Settlement
from faststream_outbox.storage.ordering.states import ParkKey, RetryKey, SkipKey
from tests.backends import Backend, PostgresBackend
from tests.storage.contract.test_runs import begun, claim, settle

FAILED = Retry(0.0, 1, failure="ValueError: no such order")
HEADERS = {"name": "value"}


async def fail(backend: Backend, *, key: str | None, retry: Retry = FAILED) -> None:
    """Claim the only row, and settle it as one to be tried again."""
    if key is not None:
        [run] = (await claim(backend, cursor=begun())).runs
        await settle(backend, run, retry)
        return
    [row] = (await backend.claim("q")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, retry)])


async def only_row(backend: Backend) -> OutboxRow:
    [row] = await backend.rows()
    return row


async def last_failure(backend: Backend) -> str | None:
    [message] = (await OutboxOperations.on_store(backend.store).messages()).items
    return message.last_failure


@pytest.mark.parametrize("key", [None, "a"])
@pytest.mark.parametrize("headers", [None, HEADERS], ids=["without headers", "with headers"])
async def test_what_failed_last_is_kept_and_handlers_do_not_see_it(
    backend: Backend, key: str | None, headers: dict[str, str] | None
) -> None:
    await backend.insert(NewRow("q", b"", headers, key=key))
    assert await last_failure(backend) is None
    await fail(backend, key=key)
    assert await last_failure(backend) == "ValueError: no such order"
    assert (await only_row(backend)).headers == headers
    await fail(backend, key=key, retry=Retry(0.0, 2, failure="OSError: it's \x00 closed"))
    assert await last_failure(backend) == "OSError: it's � closed"
    await fail(backend, key=key, retry=Retry(0.0, 2))
    assert await last_failure(backend) == "OSError: it's � closed", "nothing new is known"
    assert (await only_row(backend)).headers == headers


@pytest.mark.parametrize("key", [None, "a"])
async def test_a_dead_letter_has_its_headers_as_they_were_published(backend: Backend, key: str | None) -> None:
    await backend.insert(NewRow("q", b"", HEADERS, key=key))
    await fail(backend, key=key)
    if key is None:
        [row] = (await backend.claim("q")).rows
        async with backend.store.connect() as lane:
            await lane.settle([Settlement(row.lease, Dead("rejected", "KeyError: 7"))])
    else:
        [run] = (await claim(backend, cursor=begun())).runs
        await settle(backend, run, Dead("rejected", "KeyError: 7"))
    [letter] = (await OutboxOperations.on_store(backend.store).dead_letters()).items
    assert (letter.headers, letter.exception) == (HEADERS, "KeyError: 7")


async def test_a_key_says_what_failed_last(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", key="a"))
    await fail(backend, key="a", retry=Retry(3600.0, 3, failure="ValueError: no such order"))
    [key] = (await OutboxOperations.on_store(backend.store).keys("retrying")).items
    assert (key.cause, key.exception) == ("failed 3 times: ValueError: no such order", "ValueError: no such order")


async def test_a_key_that_is_parked_after_a_failure_has_the_cause_of_its_parking(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", key="a"))
    operations = OutboxOperations.on_store(backend.store)
    await fail(backend, key="a")
    [run] = (await claim(backend, cursor=begun())).runs
    await settle(backend, run, Park(Dead("retry_terminal", "KeyError: 7")))
    [key] = (await operations.keys("parked")).items
    assert (key.cause, key.exception) == ("retry_terminal: KeyError: 7", "KeyError: 7")
    async with backend.transaction() as session:
        await backend.store.act_on_key(session, RetryKey(), queue="q", key="a")
    row = await only_row(backend)
    assert (row.headers, row.headers_json) == (None, None)
    await fail(backend, key="a")
    async with backend.transaction() as session:
        await backend.store.act_on_key(session, ParkKey("closed"), queue="q", key="a")
    [key] = (await operations.keys("parked")).items
    assert key.cause == "operator: closed"
    assert (await only_row(backend)).headers is None


async def test_a_key_that_is_skipped_while_it_is_retried_was_not_parked(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", key="a"))
    await fail(backend, key="a", retry=Retry(3600.0, 1, failure="ValueError: no"))
    async with backend.transaction() as session:
        await backend.store.act_on_key(session, SkipKey("of no use"), queue="q", key="a")
    [letter] = (await OutboxOperations.on_store(backend.store).dead_letters()).items
    assert letter.exception == "of no use\n\nlast failure: ValueError: no"


async def test_headers_that_are_no_object_survive_failures(postgres: PostgresBackend) -> None:
    await postgres.insert(NewRow("q", b""))
    await postgres.run("UPDATE outbox SET headers = '[1, 2]'")
    for _ in range(2):
        await fail(postgres, key=None)
    assert await last_failure(postgres) == "ValueError: no such order"
    [row] = (await postgres.claim("q")).rows
    async with postgres.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Dead("rejected"))])
    assert await postgres.one("SELECT headers::text FROM outbox_dlq") == "[1, 2]"
