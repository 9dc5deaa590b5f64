"""Every page: what it shows of rows in every state, of nothing, and of what is wrong."""

import asyncio
import os
import platform
import re
from datetime import timedelta

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox import OutboxBroker
from faststream_outbox.console import Access, make_console
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import NewRow
from tests.console.outbox import Client, ConsoleOutbox, words
from tests.waiting import until


async def test_the_overview_shows_each_queue_and_what_waits_in_it(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    await outbox.operations.pause("mails", reason="the provider is down", by="ann")
    async with outbox.client() as client:
        page = (await client.get("/")).text
    for text in ("customers", "mails", "orders", "reminders", "paused", "by ann: the provider is down"):
        assert text in page
    assert "Ready 2 In flight 0 Blocked 2 Scheduled 2 Blocked keys 1 Dead letters 3" in words(page)


async def test_a_message_whose_lease_ran_out_is_counted_on_the_overview(outbox: ConsoleOutbox) -> None:
    [row] = await outbox.backend.insert(NewRow("orders", b"1"))
    await outbox.backend.claim("orders", lease_seconds=1)
    await outbox.backend.pass_time(2)
    async with outbox.client() as client:
        page = await client.get("/")
        assert "In flight 0 1 expired" in words(page.text)
        await _follow(client, page.text, "queue?name=orders&amp;state=expired", said=str(row))
        assert "Was held by" in await client.text(f"/messages/{row}")


async def test_the_numbers_of_the_overview_lead_to_what_they_count(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        tiles = (await client.get("/")).text.partition("</section>")[0]
        assert '<a href="/keys">' in tiles
        assert '<a href="/dead-letters">' in tiles


async def test_a_queue_says_how_many_messages_wait_for_their_key(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        page = (await client.get("/queue?name=customers")).text
        assert "2 messages of this queue wait for their key: 1 blocked key" in words(page)
        await _follow(client, page, "keys?queue=customers", said="ada")


async def test_a_queue_that_is_paused_and_empty_is_shown(outbox: ConsoleOutbox) -> None:
    await outbox.operations.pause("newsletter", reason="a wrong link", by="ann")
    async with outbox.client() as client:
        assert "newsletter paused" in await client.text("/")
        assert "Paused by ann" in await client.text("/queue?name=newsletter")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        pytest.param("/", "The outbox is empty", id="overview"),
        pytest.param("/queue?name=orders", "No messages wait in orders", id="queue"),
        pytest.param("/keys", "No key waits", id="keys"),
        pytest.param("/key?queue=orders&key=k", "No message has this key", id="key"),
        pytest.param("/dead-letters", "No dead letters", id="dead letters"),
        pytest.param("/dead-letters/rows?queue=orders", "No dead letter matches", id="rows of dead letters"),
        pytest.param("/dead-letters/rows", "No dead letters A message comes here", id="all rows of dead letters"),
        pytest.param("/queue?name=new", "what is published next appears here", id="a queue never used"),
        pytest.param("/timers", "No timers wait", id="timers"),
        pytest.param("/nodes", "No process is alive", id="nodes"),
        pytest.param("/audit", "Nobody has done anything", id="audit"),
        pytest.param("/search?q=c-1", "Nothing has this id or correlation id", id="search"),
    ],
)
async def test_a_page_of_an_empty_outbox_says_what_would_be_there(outbox: ConsoleOutbox, path: str, said: str) -> None:
    async with outbox.client() as client:
        assert said in await client.text(path)


async def test_a_queue_shows_its_messages_by_state(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        everything = await client.text("/queue?name=orders")
        assert all(str(ids[name]) in everything for name in ("ready", "delayed", "binary"))
        delayed = await client.text("/queue?name=orders&state=delayed")
        assert '{"order": 4}' in delayed
        assert '{"order": 3}' not in delayed
        for query in ("correlation_id=c-1", "header=tenant%3Dacme"):
            found = await client.text(f"/queue?name=orders&{query}")
            assert '{"order": 3}' in found
            assert '{"order": 4}' not in found


async def test_pages_of_a_queue_follow_each_other(outbox: ConsoleOutbox) -> None:
    ids = await outbox.backend.insert(*[NewRow("many", b"x") for _ in range(70)])
    seen: list[int] = []
    async with outbox.client() as client:
        path: str | None = "/queue?name=many"
        while path:
            page = (await client.get(path)).text
            seen += [each for each in ids if f'value="{each}"' in page]
            path = _next(page)
    assert sorted(seen) == sorted(ids)


def _next(page: str) -> str | None:
    before, found, _ = page.partition('">Next page')
    return before.rpartition('href="')[2].replace("&amp;", "&") if found else None


async def test_a_message_is_shown_with_body_headers_and_history(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        page = await client.text(f"/messages/{ids['ready']}")
        for text in ('{ "order": 3 }', "tenant acme", "Correlation id c-1", "Published"):
            assert text in page
        assert "ff 00 10" in await client.text(f"/messages/{ids['binary']}?body=hex")
        assert '{"order": 3}' in await client.text(f"/messages/{ids['ready']}?body=raw")
        parked = await client.text(f"/messages/{ids['head']}")
        assert "Why it is parked" in parked
        assert "under <i>investigation</i>" in parked


async def test_a_timer_is_offered_the_acts_of_timers(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        page = await client.text(f"/messages/{ids['timer']}")
        assert "Fire… Cancel timer… Move…" in page
        assert not re.search("Deliver now|Discard", page)
        assert "Deliver now… Move… Discard…" in await client.text(f"/messages/{ids['delayed']}")


async def test_a_message_behind_another_of_its_key_leads_to_it(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        assert str(ids["behind"]) in await client.text("/queue?name=customers&state=blocked")
        assert str(ids["behind"]) not in await client.text("/queue?name=customers&state=ready")
        page = (await client.get(f"/messages/{ids['behind']}")).text
        assert (
            f"Waits behind {ids['head']} , the first of its key parked: operator: under <i>investigation</i>"
            in words(page)
        )
        await _follow(client, page, f"messages/{ids['head']}", said="Why it is parked")


async def test_keys_that_wait_are_listed_with_what_is_behind_them(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        listed = await client.text("/keys")
        assert "ada customers parked" in listed
        detail = await client.text("/key?queue=customers&key=ada")
        assert "Waiting behind the first 1" in detail
        assert "No key is retrying" in await client.text("/keys?state=retrying")


async def test_dead_letters_are_grouped_and_each_has_its_trace(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        groups = await client.text("/dead-letters")
        assert "PayError app orders retry terminal" in groups
        rows = await client.text("/dead-letters/rows?queue=orders&exception_type=app.PayError")
        assert '{"order": 1}' in rows
        assert '{"order": 2}' in rows
        letter = await client.text("/dead-letters/1")
        assert "app.PayError: no" in letter
        assert "Dead-lettered" in letter


async def test_what_belongs_together_is_found_by_its_correlation_id_or_its_id(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        found = await client.text("/search?q=c-dead")
        assert "Dead letters" in found
        assert '{"order": 1}' in found
        assert '{"order": 3}' in await client.text(f"/search?q={ids['ready']}")


async def test_timers_and_the_audit_are_listed(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        assert "invoice-7 reminders delayed" in await client.text("/timers")
        assert "eve park key 1 key ada of customers under <i>investigation</i>" in await client.text("/audit")
        assert "Who eve" in await client.text("/audit/1")
        assert "There is no act 99" in await client.text("/audit/99", 404)
        assert "No act matches" in await client.text("/audit?action=purge")


async def test_the_nodes_that_run_are_listed_with_their_queues(outbox: ConsoleOutbox) -> None:
    operations = outbox.operations
    broker = OutboxBroker(
        outbox.backend.engine,
        outbox_table=outbox.backend.outbox_table,
        dlq_table=outbox.backend.dlq_table,
        control_table=operations.control_table,
        nodes_table=operations.nodes_table,
    )
    broker.subscriber("orders")(handle)
    async with broker, outbox.client(make_console(broker)) as client:
        await broker.start()
        await until(lambda: _listed(client))
        assert "orders 1 node" in await _with_message(outbox, client)


async def handle(body: str) -> None:
    raise AssertionError(body)


async def test_a_message_says_which_process_holds_it_and_whether_it_is_alive(outbox: ConsoleOutbox) -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    broker = OutboxBroker(
        outbox.backend.engine, outbox_table=outbox.backend.outbox_table, dlq_table=outbox.backend.dlq_table
    )

    @broker.subscriber("orders")
    async def hold(_body: int) -> None:
        started.set()
        await may_end.wait()

    async with broker, outbox.client() as client:
        await broker.start()
        [row] = await outbox.backend.insert(NewRow("orders", b"1", {"content-type": "application/json"}))
        await asyncio.wait_for(started.wait(), 60)
        assert f"Held by {platform.node()}:{os.getpid()} alive" in await client.text(f"/messages/{row}")
        may_end.set()


async def _listed(client: Client) -> bool:
    return "alive orders" in await client.text("/nodes")


async def _with_message(outbox: ConsoleOutbox, client: Client) -> str:
    await outbox.backend.insert(NewRow("orders", b"1", activate_in=timedelta(hours=1)))
    return await client.text("/")


async def test_the_doctor_says_what_is_wrong_and_the_overview_repeats_it(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        assert "The doctor has not looked yet" in await client.text("/")
        said = await client.text("/doctor")
        assert "what mends it; nothing was changed" in said
        assert "faststream-outbox keys show customers ada" in said
        assert "The doctor found" in await client.text("/")


async def test_the_doctor_of_an_empty_outbox_is_heard_on_the_overview(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        assert "The doctor has not looked yet" in await client.text("/")
        assert "Examined just now." in await client.text("/doctor")
        assert "The doctor has not looked yet" not in await client.text("/")


async def test_a_node_that_is_gone_has_the_same_name_on_its_page_and_on_its_message(outbox: ConsoleOutbox) -> None:
    [row] = await outbox.backend.insert(NewRow("orders", b"1"))
    await outbox.backend.run(
        "UPDATE outbox SET acquired_token = '00000000-abcd-8000-8000-000000000000', "
        "lease_expires_at = now() + interval '1 hour'"
    )
    async with outbox.client() as client:
        assert "00000000-abcd gone" in await client.text("/nodes")
        assert "Held by 00000000-abcd gone" in await client.text(f"/messages/{row}")


async def test_without_the_tables_of_operators_pages_say_which_one_to_create(outbox: ConsoleOutbox) -> None:
    bare = OutboxOperations(outbox.backend.engine, outbox_table=outbox.backend.outbox_table)
    outbox.operations = bare
    await outbox.backend.insert(NewRow("orders", b"1"))
    async with outbox.client() as client:
        assert "orders unknown" in await client.text("/")
        assert "Pause" not in await client.text("/")
        assert "There is no audit table" in await client.text("/audit")
        for path in ("/dead-letters", "/dead-letters/rows"):
            assert "There is no dead-letter table" in await client.text(path)
            assert 'aria-label="Filter dead letters"' not in (await client.get(path)).text
        assert "Dead letters \N{EN DASH}" in await client.text("/")
        assert "Nothing has this id" in await client.text("/search?q=99")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        pytest.param("/nothing", 404, "There is no page", id="no page"),
        pytest.param("/messages/7", 404, "it was handled, discarded or dead-lettered", id="no message"),
        pytest.param("/messages/seven", 404, "ids are numbers", id="no number"),
        pytest.param("/messages/99999999999999999999", 404, "is no id", id="a number too large"),
        pytest.param("/dead-letters/7", 404, "it was replayed or purged", id="no dead letter"),
        pytest.param("/queue", 400, "No queue is named", id="no queue"),
        pytest.param("/queue?name=q&state=odd", 400, "state is one of", id="no state"),
        pytest.param("/queue?name=q&header=tenant", 400, "name=value", id="no header"),
        pytest.param("/queue?name=q&after=odd", 400, "after", id="no place"),
        pytest.param("/keys?state=odd", 400, "state is one of", id="no state of keys"),
        pytest.param("/dead-letters/rows?reason=odd", 400, "reason is one of", id="no reason"),
        pytest.param("/audit?after=odd", 400, "no place in the audit", id="no place in the audit"),
        pytest.param(f"/audit?after={'9' * 30}", 400, "no place in the audit", id="a place too large"),
        pytest.param(f"/audit/{'9' * 30}", 404, "is no id", id="an act too large"),
        pytest.param(f"/search?q={'9' * 5000}", 400, "the column holds 255", id="a search too long"),
        pytest.param("/search?q=%00", 400, "NUL", id="a search for a NUL"),
        pytest.param("/key?queue=q&key=%00", 400, "NUL", id="a key with a NUL"),
        pytest.param("/live?page=//[", 404, "No page is at", id="no address"),
        pytest.param("/jobs/odd", 404, "not known here", id="no job"),
        pytest.param("/live?page=/odd", 404, "No page that updates itself", id="no live page"),
        pytest.param("/acts/one/odd", 404, "There is no act", id="no act"),
    ],
)
async def test_what_cannot_be_shown_is_a_page_that_says_why(
    outbox: ConsoleOutbox, path: str, status: int, said: str
) -> None:
    async with outbox.client() as client:
        assert said in await client.text(path, status)


async def test_who_is_known_keeps_the_menu_on_the_page_of_an_error(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        assert 'aria-label="Pages"' in (await client.get("/messages/7")).text
    async with outbox.client(access=lambda _request: None) as client:
        refused = await client.get("/messages/7")
        assert (refused.status_code, 'aria-label="Pages"' in refused.text) == (403, False)


async def test_a_database_that_does_not_answer_is_a_page_too(outbox: ConsoleOutbox) -> None:
    gone = OutboxOperations(
        create_async_engine("postgresql+asyncpg://127.0.0.1:9/nowhere"), outbox_table=outbox.backend.outbox_table
    )
    async with outbox.client(make_console(gone)) as client:
        assert "The database did not answer" in await client.text("/keys?state=parked", 503)
        page = (await client.get("/keys?state=parked")).text
        assert '<a class="button" href="/keys?state=parked">Try again</a>' in page


async def test_a_missing_table_is_named(outbox: ConsoleOutbox) -> None:
    await outbox.backend.run("DROP TABLE outbox CASCADE")
    async with outbox.client() as client:
        text = await client.text("/keys?state=parked", 503)
        assert "A table or a column is missing" in text
        assert 'relation "outbox" does not exist' in text


@pytest.mark.parametrize("number", ["0", "-9", "9223372036854775808", "9" * 5_000, "x", "\uff11"])
@pytest.mark.parametrize("page", ["/messages/", "/dead-letters/", "/audit/"])
async def test_an_id_that_no_row_can_have_is_not_found(outbox: ConsoleOutbox, page: str, number: str) -> None:
    async with outbox.client() as client:
        text = await client.text(f"{page}{number}", 404)
        assert "is no id: ids are numbers, from 1." in text


async def test_a_name_that_no_column_takes_is_refused(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        assert "This cannot be done" in await client.text("/queue?name=%00", 400)


async def test_a_hook_that_raises_is_a_page_and_a_log_record(
    outbox: ConsoleOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    await outbox.fill()

    def fail(_: object) -> Access:
        raise ZeroDivisionError("secret")

    for console in (outbox.app(redact=fail), outbox.app(access=fail)):
        caplog.clear()
        async with outbox.client(console) as client:
            answer = await client.get("/queue?name=orders")
        assert answer.status_code == 500
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "This page failed" in answer.text
        assert "secret" not in answer.text
        assert "ZeroDivisionError: secret" in caplog.text


async def test_names_with_any_characters_lead_to_their_pages(outbox: ConsoleOutbox) -> None:
    name = 'a/b?c&d="é" <x>'
    await outbox.backend.insert(NewRow(name, b"1", key="k/#?"))
    await outbox.operations.park_key(name, "k/#?", reason="test")
    async with outbox.client() as client:
        for path in ("/", "/keys"):
            page = (await client.get(path)).text
            assert "&lt;x&gt;" in page
            await _follow(client, page, "queue?name=a")
        await _follow(client, page, "key?queue=a")


async def test_a_name_that_turns_its_letters_around_is_seen_as_it_is(outbox: ConsoleOutbox) -> None:
    name = "\u202egnp.exe"
    [row] = await outbox.backend.insert(NewRow(name, b"1", {"correlation_id": name}, key=name))
    await outbox.operations.park_key(name, name, reason=name, by="ann")
    await outbox.bury(b"1", queue=f"{name}2")
    async with outbox.client() as client:
        for path in ("/", "/keys", "/dead-letters", "/dead-letters/rows", "/dead-letters/1", "/audit", "/audit/1"):
            page = await client.text(path)
            assert "\\u202egnp.exe" in page, path
            if path != "/audit/1":
                assert "\u202e" not in page, path
        for path in (f"/messages/{row}", "/queue", "/key"):
            page = (await client.get(path, params={"queue": name, "name": name, "key": name})).text
            assert "\\u202egnp.exe" in page.partition("<h1>")[0] + page.partition("</h1>")[0], path
        # A form still has the name itself.
        assert name in (await client.get("/queue", params={"name": name})).text


async def _follow(client: Client, page: str, beginning: str, said: str = "a/b?c") -> None:
    found, link = page.partition(f'href="/{beginning}')[1:]
    assert found
    address = f"/{beginning}{link}".partition('"')[0].replace("&amp;", "&")
    assert said in await client.text(address)
