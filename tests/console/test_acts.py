"""Every act: its preview changes nothing, its result names the rows and the entry of the audit."""

import json

import pytest

from faststream_outbox.console import make_console
from faststream_outbox.operations import AuditFilter, DeadLetterFilter, MessageFilter, OutboxOperations
from faststream_outbox.storage import NewRow
from tests.console.outbox import JSON, ConsoleOutbox, field, hidden_fields, text_area, words


async def test_a_preview_shows_what_would_happen_and_changes_nothing(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        response = await client.submit("/acts/preview", act="purge", scope="all", where_queue="orders")
    page = words(response.text)
    assert "2 dead letters" in page
    assert "Purge for good: 2 dead letters" in page
    assert '{"order": 1}' in page
    assert len((await outbox.operations.dead_letters()).items) == 3


async def test_rows_that_come_after_the_preview_are_not_touched(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"1")
    async with outbox.client() as client:
        preview = await client.submit("/acts/preview", act="purge", scope="all", where_queue="orders")
        await outbox.bury(b"2")
        selection = field(preview.text, "selection")
        result = await client.submit("/acts/run", act="purge", selection=selection, reason="old")
    assert "Done" in words(result.text)
    [left] = (await outbox.operations.dead_letters()).items
    assert left.body.raw == b"2"


async def test_ticked_dead_letters_go_back_into_their_queue(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        result = await client.act("replay", ids=["1", "2"], reason="the bank is back", extra={"rate": "1000"})
    assert "2 dead letters" in result
    assert "the bank is back" in result
    assert "Audit entry 2" in result
    [entry, _] = (await outbox.operations.audit()).items
    assert (entry.action, entry.count, entry.reason) == ("replay", 2, "the bank is back")
    assert not (await outbox.operations.dead_letters(DeadLetterFilter(queue="orders"))).items


async def test_messages_that_match_are_delivered_now(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        assert "Done" in await client.act("deliver_now", scope="all", where_queue="orders", where_state="delayed")
    message = await outbox.operations.message(ids["delayed"])
    assert message is not None
    assert message.state == "ready"


async def test_messages_are_discarded_and_moved(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        assert "Done" in await client.act("discard", ids=[str(ids["binary"])])
        moved = await client.act(
            "move", ids=[str(ids["ready"]), str(ids["delayed"])], extra={"queue": "late", "sure": "late"}
        )
        assert "2 messages" in moved
    assert await outbox.operations.message(ids["binary"]) is None
    assert len((await outbox.operations.messages(MessageFilter(queue="late"))).items) == 2


async def test_rows_that_are_left_out_are_named_with_the_reason(outbox: ConsoleOutbox) -> None:
    await outbox.backend.insert(NewRow("orders", b"1"))
    [row] = (await outbox.backend.claim("orders")).rows
    async with outbox.client() as client:
        result = await client.act("discard", ids=[str(row.id)])
    assert "Nothing was changed" in result
    assert f"Left out: 1 message {row.id}" in result


@pytest.mark.parametrize(
    ("act", "state"),
    [
        pytest.param("retry_key", "ready", id="retry"),
        pytest.param("release_key", "ready", id="release"),
    ],
)
async def test_a_parked_key_goes_on(outbox: ConsoleOutbox, act: str, state: str) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        result = await client.act_on(act, queue="customers", key="ada")
    assert "Done" in result
    assert "Audit entry" in result
    detail = await outbox.operations.key("customers", "ada")
    assert detail is not None
    assert detail.state == state


async def test_a_key_is_skipped_parked_and_held(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        assert "Done" in await client.act_on("skip_key", queue="customers", key="ada", reason="cancelled by phone")
        assert "Done" in await client.act_on("park_key", queue="customers", key="ada")
        again = await client.act_on("park_key", queue="customers", key="ada")
        assert "Nothing was changed" in again
        assert "parked already" in again
        assert "Done" in await client.act_on("hold_key", queue="customers", key="grace")
    letters = (await outbox.operations.dead_letters(DeadLetterFilter(queue="customers"))).items
    assert [letter.original_id for letter in letters] == [ids["head"]]
    states = {key.key: key.state for key in (await outbox.operations.keys()).items}
    assert states == {"ada": "parked", "grace": "parked"}


async def test_a_key_is_skipped_at_the_message_that_the_form_has_shown(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        form = await client.get("/acts/one/skip_key", params={"queue": "customers", "key": "ada"})
        assert f"First message {ids['head']} parked" in words(form.text)
        assert '{"n": 1}' in words(form.text)
        assert "under <i>investigation</i>" in words(form.text)
        given = hidden_fields(form.text) | {"reason": "broken"}
        results = [words((await client.submit("/acts/one/skip_key", **given)).text) for _ in range(2)]
    assert "Done" in results[0]
    assert "Nothing was changed" in results[1]
    assert "Another message is first now" in results[1]
    letters = (await outbox.operations.dead_letters(DeadLetterFilter(queue="customers"))).items
    assert [letter.original_id for letter in letters] == [ids["head"]]
    assert await outbox.operations.message(ids["behind"]) is not None


@pytest.mark.parametrize("act", ["skip_key", "retry_key"])
@pytest.mark.parametrize("head", ["", "x", "9" * 30])
async def test_a_form_that_names_no_first_message_is_shown_again_with_it(
    outbox: ConsoleOutbox, act: str, head: str
) -> None:
    ids = await outbox.fill()
    given = {"queue": "customers", "key": "ada", "reason": "broken", "head": head}
    async with outbox.client() as client:
        response = await client.submit(f"/acts/one/{act}", **given)
    assert response.status_code == 422
    assert hidden_fields(response.text)["head"] == str(ids["head"])
    assert 'value="broken"' in response.text
    assert await outbox.operations.message(ids["head"]) is not None


async def test_what_skipping_does_is_said_where_there_is_no_table_of_dead_letters(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    table, audit_table = outbox.backend.outbox_table, outbox.operations.audit_table
    app = make_console(OutboxOperations(outbox.backend.engine, outbox_table=table, audit_table=audit_table))
    async with outbox.client() as client:
        assert "becomes a dead letter" in await client.text("/acts/one/skip_key?queue=customers&key=ada")
    async with outbox.client(app) as client:
        page = await client.text("/acts/one/skip_key?queue=customers&key=ada")
        assert "deleted for good: there is no dead-letter table" in page
        assert "becomes a dead letter" not in page
        assert "Done" in await client.act_on("skip_key", queue="customers", key="ada")
    assert await outbox.operations.message(ids["head"]) is None
    assert len((await outbox.operations.dead_letters()).items) == 3


@pytest.mark.parametrize(
    ("act", "fields", "said"),
    [
        pytest.param("pause", {"queue": "orders", "seconds": "900", "reason": "x" * 1001}, "1000 are kept", id="long"),
        pytest.param("pause", {"queue": "orders", "reason": " "}, "The reason is missing", id="no reason"),
        pytest.param("hold_key", {"queue": "orders", "key": "k" * 300, "reason": "x"}, "column holds", id="a long key"),
        pytest.param("hold_key", {"queue": "orders", "key": "", "reason": "x"}, "The key is empty", id="no key"),
    ],
)
async def test_a_form_that_is_refused_is_shown_again_as_it_was(
    outbox: ConsoleOutbox, act: str, fields: dict[str, str], said: str
) -> None:
    async with outbox.client() as client:
        response = await client.submit(f"/acts/one/{act}", **fields)
    assert response.status_code == 422
    assert said in words(response.text)
    for value in filter(str.strip, fields.values()):
        assert f'value="{value}"' in response.text
    assert not await outbox.operations.pauses()
    assert not (await outbox.operations.keys()).items


async def test_a_queue_is_paused_for_a_while_and_resumed(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        result = await client.submit("/acts/one/pause", queue="orders", reason="deploy", seconds="3600")
        assert "Done" in words(result.text)
        [pause] = await outbox.operations.pauses()
        assert (pause.queue, pause.reason, pause.until is not None) == ("orders", "deploy", True)
        refused = await client.submit("/acts/one/pause", queue="orders", reason="deploy", seconds="7")
        assert refused.status_code == 422
        assert "Resume orders Done" in await client.act_on("resume", queue="orders")
        assert "It was not paused" in await client.act_on("resume", queue="orders")
    assert not await outbox.operations.pauses()


async def test_timers_are_fired_and_cancelled(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client() as client:
        assert "Done" in await client.act_on("fire_timer", queue="reminders", timer_id="invoice-7")
        message = await outbox.operations.message(ids["timer"])
        assert message is not None
        assert message.state == "ready"
        assert "it is due already" in await client.act_on("fire_timer", queue="reminders", timer_id="invoice-7")
        assert "Done" in await client.act_on("cancel_timer", queue="reminders", timer_id="invoice-7")
    assert await outbox.operations.message(ids["timer"]) is None


async def test_a_dead_letter_is_edited_and_goes_back(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b'{"card": "expired"}', headers={**JSON, "tenant": "acme", "n": 7})
    async with outbox.client() as client:
        form = await client.get("/dead-letters/1/edit")
        assert "tenant=acme" in form.text
        headers = "content-type=application/json\r\nn=7\r\nfixed=yes"
        fields = {"body": '{\r\n  "card": "valid"\r\n}', "headers": headers, "reason": "a new card"}
        assert "Done" in words((await client.submit("/dead-letters/1/edit", **fields)).text)
    [message] = (await outbox.operations.messages()).items
    assert message.body.data == {"card": "valid"}
    assert message.headers == {"content-type": "application/json", "n": 7, "fixed": "yes"}


async def test_an_edit_changes_only_what_was_edited(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b'{"amount": 12345678901234567.89, "price": 0.10, "big": 1e400, "a": 1, "a": 2, "note": "x"}')
    async with outbox.client() as client:
        body = text_area((await client.get("/dead-letters/1/edit")).text, "body")
        given = {"headers": "content-type=application/json", "reason": "a typing error"}
        same = await client.submit("/dead-letters/1/edit", body=body.replace("\n", "\r\n"), **given)
        assert "Nothing is changed" in words(same.text)
        await client.submit("/dead-letters/1/edit", body=body.replace('"x"', '"y"'), **given)
    [message] = (await outbox.operations.messages()).items
    expected = '{"amount": 12345678901234567.89, "price": 0.10, "big": 1e400, "a": 1, "a": 2, "note": "y"}'
    assert " ".join((message.body.text or "").split()) == expected.replace("{", "{ ").replace("}", " }")


async def test_an_edited_text_keeps_its_line_ends(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"one\r\ntwo", headers={"content-type": "text/plain"})
    async with outbox.client() as client:
        await client.submit("/dead-letters/1/edit", body="one\r\n2", headers="content-type=text/plain", reason="no")
    [message] = (await outbox.operations.messages()).items
    assert message.body.raw == b"one\r\n2"


async def test_a_text_without_a_content_type_is_not_checked_as_json(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"plain", headers={"tenant": "acme"})
    async with outbox.client() as client:
        assert "data-json" not in (await client.get("/dead-letters/1/edit")).text


async def test_a_body_that_is_too_large_for_a_form_is_left_to_the_command_line(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"[" + b"1," * (2 * 1024 * 1024) + b"1]")
    async with outbox.client() as client:
        page = await client.text("/dead-letters/1/edit", status=400)
        assert "faststream-outbox dlq edit 1" in page
        assert "4.0 MiB" in page
        shown = await client.text("/dead-letters/1")
    assert "too large to indent" in shown
    assert "cut after 256.0 KiB" in shown


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"body": '{"card": }'}, "The body is not JSON", id="no JSON"),
        pytest.param({"body": "NaN"}, "NaN is no number of JSON", id="no number"),
        pytest.param({"headers": "tenant"}, "Headers are lines of name=value", id="no header"),
        pytest.param({}, "Nothing is changed", id="nothing"),
        pytest.param({"body": "7", "reason": " "}, "The reason is missing", id="no reason"),
    ],
)
async def test_what_is_edited_wrongly_is_shown_again_and_changes_nothing(
    outbox: ConsoleOutbox, fields: dict[str, str], said: str
) -> None:
    await outbox.bury(b"1")
    given = {"body": "1", "headers": "content-type=application/json", "reason": "because"} | fields
    async with outbox.client() as client:
        response = await client.submit("/dead-letters/1/edit", **given)
    assert response.status_code == 422
    assert said in words(response.text)
    assert not (await outbox.operations.messages()).items


async def test_only_headers_of_a_binary_body_are_edited(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"\xff\xfe", headers={"tenant": "acme"})
    async with outbox.client() as client:
        assert "The body is not text" in await client.text("/dead-letters/1/edit")
        await client.submit("/dead-letters/1/edit", headers="tenant=initech", reason="moved")
    [message] = (await outbox.operations.messages()).items
    assert (message.body.raw, message.headers) == (b"\xff\xfe", {"tenant": "initech"})


async def test_dead_letters_are_exported_as_json_lines(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        response = await client.submit("/acts/export", scope="all", where_queue="orders")
    assert "attachment" in response.headers["content-disposition"]
    assert [json.loads(line)["id"] for line in response.text.splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"act": "odd"}, "There is no act", id="no act"),
        pytest.param({"act": "purge"}, "No rows are chosen", id="no rows"),
        pytest.param({"act": "purge", "ids": ["x"]}, "Ids are numbers", id="no ids"),
        pytest.param({"act": "purge", "ids": [str(n) for n in range(501)]}, "At most 500", id="too many ids"),
        pytest.param({"act": "purge", "scope": "all", "where_reason": "odd"}, "reason is one of", id="a wrong filter"),
    ],
)
async def test_a_wrong_choice_of_rows_is_refused(
    outbox: ConsoleOutbox, fields: dict[str, str | list[str]], said: str
) -> None:
    async with outbox.client() as client:
        response = await client.submit("/acts/preview", **fields, back="\\/dead-letters/rows?queue=orders")
    assert response.status_code == 400
    assert said in words(response.text)
    assert '<a class="button" href="/dead-letters/rows?queue=orders">Back</a>' in response.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"reason": ""}, "The reason is missing", id="no reason"),
        pytest.param({"selection": "{}"}, "The selection cannot be read", id="no selection"),
        pytest.param({"act": "discard"}, "The selection cannot be read", id="a selection of other rows"),
        pytest.param({"act": "replay", "rate": "fast"}, "The rate is a number", id="no rate"),
        pytest.param({"act": "replay", "rate": "0"}, "The rate is a finite number from 0.001", id="a rate of zero"),
        pytest.param({"reason": "x" * 1001}, "1000 are kept", id="a long reason"),
    ],
)
async def test_an_act_that_is_confirmed_wrongly_is_refused(
    outbox: ConsoleOutbox, fields: dict[str, str], said: str
) -> None:
    await outbox.bury(b"1")
    async with outbox.client() as client:
        preview = await client.submit("/acts/preview", act="purge", ids=["1"])
        given = {"act": "purge", "selection": field(preview.text, "selection"), "reason": "old"} | fields
        response = await client.submit("/acts/run", **given)
    assert response.status_code == (400 if "selection" in said else 422)
    assert said in words(response.text)
    assert ('value="old"' in response.text) == (response.status_code == 422 and fields.get("reason") is None)
    assert await outbox.operations.dead_letter(1) is not None


async def test_a_selection_that_is_empty_by_now_says_so(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        response = await client.submit("/acts/preview", act="purge", scope="all", where_queue="orders")
    assert "No row matches any more" in words(response.text)


async def test_a_long_act_shows_its_progress_and_can_be_stopped(outbox: ConsoleOutbox) -> None:
    await outbox.bury(*[b"1"] * 40)
    async with outbox.client() as client:
        preview = await client.submit("/acts/preview", act="replay", scope="all", where_queue="orders")
        given = {"act": "replay", "selection": field(preview.text, "selection"), "reason": "slowly", "rate": "2"}
        running = await client.submit("/acts/run", **given)
        assert "of 40 dead letters" in words(running.text)
        stop = running.text.partition('action="')[2]
        job = stop[stop.index("/jobs/") :].partition("/stop")[0]
        stopped = await client.submit(f"{job}/stop")
        assert "Stopped after" in words(stopped.text)
        left = len((await outbox.operations.dead_letters()).items)
        assert 0 < left < 40
        [entry] = (await outbox.operations.audit()).items
        assert entry.count == 40 - left
        assert f"Audit entry {entry.id}" in words(stopped.text)
        await outbox.bury(b"later")
        rest = words((await client.submit("/acts/run", **(hidden_fields(stopped.text) | {"rate": ""}))).text)
        assert f"{left} dead letters By" in rest
    [letter] = (await outbox.operations.dead_letters()).items
    assert letter.id > 40


async def test_all_rows_that_were_left_out_are_counted(outbox: ConsoleOutbox) -> None:
    await outbox.backend.insert(*[NewRow("orders", b"1")] * 1203)
    async with outbox.client() as client:
        preview = await client.submit("/acts/preview", act="deliver_now", scope="all", where_queue="orders")
        assert "Deliver now: up to 1,203 messages" in words(preview.text)
        result = await client.act("deliver_now", scope="all", where_queue="orders")
    assert "Left out: 1,203 messages" in result
    assert "and 1,183 more" in result


async def test_messages_are_moved_to_another_queue_only_and_to_an_unknown_one_after_a_question(
    outbox: ConsoleOutbox,
) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        for chosen in ({"scope": "all", "where_queue": "orders"}, {"ids": ["4"]}):
            preview = await client.submit("/acts/preview", act="move", **chosen)
            assert '<option value="customers">' in preview.text
            given = {"act": "move", "selection": field(preview.text, "selection"), "reason": "r"}
            same = await client.submit("/acts/run", **given, queue="orders")
            assert same.status_code == 422
            assert "already: name another one" in words(same.text)
        asked = await client.submit("/acts/run", **given, queue="custmers")
        assert asked.status_code == 422
        assert "The queue custmers has no messages" in words(asked.text)
        other = await client.submit("/acts/run", **(hidden_fields(asked.text) | {"queue": "odrers", "reason": "r"}))
        assert other.status_code == 422
        assert not (await outbox.operations.audit(AuditFilter(action="move"))).items
        confirmed = hidden_fields(asked.text) | {"queue": "custmers", "reason": "r"}
        assert "Done" in words((await client.submit("/acts/run", **confirmed)).text)


async def test_what_the_database_refuses_is_said_on_the_page_of_the_act(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"1")
    async with outbox.client() as client:
        preview = await client.submit("/acts/preview", act="purge", ids=["1"])
        await outbox.backend.run("DROP TABLE outbox_audit")
        given = {"act": "purge", "selection": field(preview.text, "selection"), "reason": "old"}
        result = words((await client.submit("/acts/run", **given)).text)
    assert "The database refused it" in result
    assert "Nothing was changed" in result
