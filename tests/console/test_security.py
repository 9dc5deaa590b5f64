"""Who gets in, what a page of another site can do, and what a body that is a script can do: nothing."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import RedirectResponse

from faststream_outbox import OutboxBroker
from faststream_outbox.console import Access
from faststream_outbox.console.access import ACTIONS, TokenAccess
from faststream_outbox.operations import Body, Message, OutboxOperations
from faststream_outbox.storage import NewRow
from tests.console.outbox import SAME_ORIGIN, Client, ConsoleOutbox, field, words
from tests.waiting import until

PAGES = ("/", "/queue?name=mails", "/keys", "/key?queue=customers&key=ada", "/dead-letters", "/dead-letters/rows")
POSTS = (
    *("/acts/preview", "/acts/run", "/acts/export", "/acts/one/pause", "/dead-letters/1/edit", "/jobs/1/stop"),
    *("/theme", "/login"),
)
LETTERS = ("/dead-letters/3", "/dead-letters/3/edit", "/timers", "/nodes", "/audit", "/doctor", "/search?q=3")


async def test_every_response_has_the_headers_of_security(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        for path in (*PAGES, *LETTERS, "/nothing", "/static/console.css"):
            _check_headers(path, (await client.get(path)).headers)


def _check_headers(path: str, headers: httpx.Headers) -> None:
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert path.startswith("/static") or headers["cache-control"] == "no-store"


async def test_no_page_has_a_script_or_a_style_of_its_own(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        for path in (*PAGES, *LETTERS):
            page = (await client.get(path)).text
            [script] = re.findall(r"<script[^>]*>", page)
            assert script.startswith('<script src="/static/console.js?'), path
            assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page), path
            assert not re.search(r'(src|href|action)="(https?:)?//', page), path


async def test_a_body_that_is_a_script_is_shown_as_text(outbox: ConsoleOutbox) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    headers = {"content-type": "text/html", "correlation_id": evil, evil: evil}
    await outbox.backend.insert(NewRow(evil, evil.encode(), headers, key=evil))
    await outbox.operations.park_key(evil, evil, reason=evil, by=evil)
    await outbox.bury(evil.encode(), queue=f"{evil}2", exception=evil, headers=headers)
    paths = ["/", "/keys", "/dead-letters", "/dead-letters/rows", "/dead-letters/1", "/dead-letters/1/edit", "/audit"]
    async with outbox.client(title=evil) as client:
        for path in [*paths, "/audit/1", "/messages/1", "/messages/1?body=raw", f"/{evil}", "/search?q=1"]:
            page = (await client.get(path)).text
            assert "&lt;script&gt;" in page, path
            assert "<script>" not in page, path
            assert "<img" not in page, path
        for path in ("/queue", "/key", "/search", "/acts/one/park_key"):
            page = (await client.get(path, params={"name": evil, "queue": evil, "key": evil, "q": evil})).text
            assert "<script>" not in page, path
        preview = (await client.submit("/acts/preview", act="purge", ids=["1"], back=f'"{evil}')).text
        assert "<script>" not in preview


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"sec-fetch-site": "cross-site"}, id="from another site"),
        pytest.param({"sec-fetch-site": "same-site"}, id="from another host of the site"),
        pytest.param({"sec-fetch-site": "none"}, id="from no site"),
        pytest.param({"origin": "https://evil.example"}, id="another origin, of an older browser"),
        pytest.param({"origin": "null"}, id="an origin that is hidden"),
        pytest.param({}, id="nothing said"),
    ],
)
async def test_a_post_that_no_page_of_the_console_sent_is_refused(
    outbox: ConsoleOutbox, headers: dict[str, str]
) -> None:
    async with _client(outbox) as client:
        for path in POSTS:
            response = await client.post(path, data={"queue": "orders", "reason": "r"}, headers=headers)
            assert response.status_code == 403, path
            assert "nothing was changed" in words(response.text), path
            _check_headers(path, response.headers)
    assert not await outbox.operations.pauses()


async def test_a_refused_post_is_answered_by_the_page_of_an_error_that_knows_nobody(outbox: ConsoleOutbox) -> None:
    def access(_request: Request) -> Access:
        raise AssertionError("The access hook is not asked.")

    async with _client(outbox, access=access, title="Shop") as client:
        response = await client.post(
            "/acts/one/pause", data={"queue": "orders"}, headers={"sec-fetch-site": "cross-site"}
        )
    assert response.status_code == 403
    assert response.headers["content-type"].startswith("text/html")
    assert "Not allowed" in words(response.text)
    assert '<a class="button" href="/">To the overview</a>' in response.text
    assert "<nav" not in response.text


def _client(
    outbox: ConsoleOutbox, host: str = "127.0.0.1", client: str = "127.0.0.1", **options: Any
) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(outbox.app(**options), client=(client, 1))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


async def test_an_older_browser_posts_with_its_origin(outbox: ConsoleOutbox) -> None:
    fields = {"queue": "orders", "reason": "r"}
    async with _client(outbox) as client:
        response = await client.post("/acts/one/pause", data=fields, headers={"origin": "http://127.0.0.1"})
    assert response.status_code == 303
    assert len(await outbox.operations.pauses()) == 1


@pytest.mark.parametrize(
    ("host", "client"),
    [
        pytest.param("127.0.0.1", "10.0.0.7", id="another machine"),
        pytest.param("evil.example", "127.0.0.1", id="a name that points to this machine"),
        pytest.param("outbox.example.com", "::1", id="a proxy on this machine"),
    ],
)
async def test_without_a_hook_only_this_machine_gets_an_answer(outbox: ConsoleOutbox, host: str, client: str) -> None:
    async with _client(outbox, host, client) as stranger:
        for path in ("/", "/live?page=/", "/doctor"):
            response = await stranger.get(path)
            assert response.status_code == 403
            assert "access=…" in response.text
        response = await stranger.post("/acts/one/pause", data={"queue": "q", "reason": "r"}, headers=SAME_ORIGIN)
        assert response.status_code == 403
    async with _client(outbox, "localhost") as here:
        assert (await here.get("/")).status_code == 200
        for header in ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"):
            refused = await here.get("/", headers={header: "203.0.113.9"})
            assert (refused.status_code, "came through a proxy" in refused.text) == (403, True)


async def test_a_hook_decides_who_gets_in(outbox: ConsoleOutbox) -> None:
    async def hook(request: Request) -> Access | RedirectResponse | None:
        match request.headers.get("x-user"):
            case None:
                return RedirectResponse("https://login.example.com")
            case "mallory":
                return None
            case user:
                return Access(user)

    async with _client(outbox, "outbox.example.com", "10.0.0.7", access=hook) as client:
        assert (await client.get("/")).headers["location"] == "https://login.example.com"
        assert (await client.get("/", headers={"x-user": "mallory"})).status_code == 403
        headers = {"x-user": "ann"} | SAME_ORIGIN
        assert "ann" in (await client.get("/", headers=headers)).text
        await client.post("/acts/one/pause", data={"queue": "orders", "reason": "deploy"}, headers=headers)
    [entry] = (await outbox.operations.audit()).items
    assert (entry.by, entry.action) == ("ann", "pause")


def restricted(**rights: Any) -> dict[str, Any]:
    return {"access": lambda _request: Access("ann", **rights)}


async def test_an_act_that_is_not_allowed_is_neither_offered_nor_done(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client(**restricted(actions={"replay"})) as client:
        rows = await client.text("/dead-letters/rows")
        assert "Replay…" in rows
        assert "Purge…" not in rows
        assert "Export" not in rows
        for act, chosen in (("purge", "1"), ("discard", str(ids["ready"]))):
            assert (await client.submit("/acts/preview", act=act, ids=[chosen])).status_code == 403
        preview = await client.submit("/acts/preview", act="replay", ids=["1"])
        forged = {"act": "purge", "selection": field(preview.text, "selection"), "reason": "r"}
        assert (await client.submit("/acts/run", **forged)).status_code == 403
        assert (await client.submit("/acts/export", ids=["1"])).status_code == 403
        for act in ACTIONS - {"replay"}:
            fields = {"queue": "orders", "key": "k", "timer_id": "t", "reason": "r"}
            assert (await client.submit(f"/acts/one/{act}", **fields)).status_code in (403, 404)
        assert (await client.submit("/dead-letters/1/edit", body="7", headers="", reason="r")).status_code == 403
    assert not await outbox.operations.pauses()
    assert len((await outbox.operations.dead_letters()).items) == 3


async def test_what_the_doctor_found_is_not_told_to_who_sees_some_queues(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    user = Access("ann")
    async with outbox.client(access=lambda _request: user) as client:
        await client.get("/doctor")
        assert "customers" in (await client.text("/")).partition("Queue State")[0]
        assert "Doctor" in (await client.get("/")).text
        user = Access("bob", queues={"orders"})
        page = (await client.get("/")).text
        assert "customers" not in page
        assert "doctor" not in page.lower()


async def test_an_empty_page_says_that_the_user_sees_some_queues(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client(**restricted(queues={"late"})) as client:
        assert "No process reads your queues" in await client.text("/nodes")
        for path in ("/", "/keys", "/dead-letters", "/dead-letters/rows", "/timers", "/nodes", "/audit"):
            assert "You see one queue only." in await client.text(path), path


async def test_numbers_of_all_queues_are_not_for_who_sees_some(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    operations = outbox.operations
    broker = OutboxBroker(
        outbox.backend.engine, outbox_table=outbox.backend.outbox_table, nodes_table=operations.nodes_table
    )
    broker.subscriber("late")(_ignore)
    broker.subscriber("zulu")(_ignore)
    async with broker:
        await broker.start()
        async with outbox.client() as client:
            await until(lambda: _contains(client, "/nodes", "alive late , zulu"))
            assert "In flight" in await client.text("/nodes")
            assert "Published" in await client.text("/")
        async with outbox.client(**restricted(queues={"late", "orders"})) as client:
            nodes = await client.text("/nodes")
            assert "alive late " in nodes
            assert "late ," not in nodes
            assert "In flight" not in nodes
            assert not re.search("Published|Settled", await client.text("/"))


async def _ignore(_body: int) -> None:
    pass


async def _contains(client: Client, path: str, text: str) -> bool:
    return text in await client.text(path)


async def test_a_page_whose_dead_letters_are_of_other_queues_says_so(outbox: ConsoleOutbox) -> None:
    await outbox.bury(b"1", queue="late")
    await outbox.bury(*[b"1"] * 60, queue="mails")
    async with outbox.client(**restricted(queues={"late"})) as client:
        page = await client.text("/dead-letters/rows")
        assert "Those of other queues are not shown" in page
        assert "10,000" not in page


async def test_of_some_queues_a_user_sees_and_changes_nothing_else(outbox: ConsoleOutbox) -> None:
    ids = await outbox.fill()
    async with outbox.client(**restricted(queues={"orders"})) as client:
        for path in ("/", "/keys", "/dead-letters", "/dead-letters/rows", "/timers", "/audit", "/search?q=invoice"):
            page = await client.text(path)
            assert not re.search(r"customers|mails|reminders|invoice-7", page.replace("“invoice”", "")), path
        for path in ("/queue?name=mails", "/keys?queue=customers", "/key?queue=customers&key=ada", "/doctor"):
            assert (await client.get(path)).status_code == 403, path
        for path in (f"/messages/{ids['timer']}", "/dead-letters/3", "/dead-letters/3/edit", "/audit/1"):
            assert (await client.get(path)).status_code == 404, path
        for path in ("/acts/preview", "/acts/export"):
            foreign = await client.submit(path, act="purge", ids=["3"])
            assert foreign.status_code == 404
            assert "mails" not in foreign.text
        for chosen in ({"scope": "all"}, {"scope": "all", "where_queue": "mails"}):
            assert (await client.submit("/acts/preview", act="purge", **chosen)).status_code == 403, chosen
            assert (await client.submit("/acts/export", **chosen)).status_code == 403, chosen
        preview = await client.submit("/acts/preview", act="purge", ids=["1"])
        forged = field(preview.text, "selection").replace("[1]", "[3]")
        assert (await client.submit("/acts/run", act="purge", selection=forged, reason="r")).status_code == 404
        move = await client.submit("/acts/preview", act="move", ids=[str(ids["ready"])])
        given = {"act": "move", "selection": field(move.text, "selection"), "reason": "r", "queue": "mails"}
        assert (await client.submit("/acts/run", **given)).status_code == 403
        assert (await client.submit("/acts/one/pause", queue="mails", reason="r")).status_code == 403
        assert (await client.submit("/dead-letters/3/edit", body="7", headers="", reason="r")).status_code == 404
        assert "2 dead letters" in await client.act("replay", scope="all", where_queue="orders")
    assert await outbox.operations.dead_letter(3) is not None


@pytest.mark.parametrize("wrong", [{"user": " "}, {"user": "a", "actions": {"fly"}}, {"user": "a", "queues": "orders"}])
def test_an_access_that_says_nothing_sensible_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Access(**wrong)


async def test_rows_of_other_queues_that_come_while_an_act_runs_are_left_alone(outbox: ConsoleOutbox) -> None:
    await outbox.bury(*[b"mine"] * 5, queue="orders")
    async with outbox.client(**restricted(queues={"orders"})) as client:
        preview = await client.submit("/acts/preview", act="replay", ids=["1"])
        forged = field(preview.text, "selection").replace("[1]", str([*range(1, 6), *range(6, 50)]))
        given = {"act": "replay", "selection": forged, "reason": "r", "rate": "2"}
        job = asyncio.create_task(client.submit("/acts/run", **given))
        await until(outbox.operations.messages, lambda page: page.items)
        await outbox.bury(b"secret", queue="mails")
        address = (await job).url.path
        await until(lambda: client.get(address), lambda page: "data-ended" in page.text)
    assert [letter.queue for letter in (await outbox.operations.dead_letters()).items] == ["mails"]


async def test_a_user_of_some_queues_sees_the_audit_of_an_own_act_on_ids(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client(**restricted(queues={"orders"})) as client:
        assert "Audit entry 2" in await client.act("purge", ids=["1"])
        assert "because" in await client.text("/audit/2")
        assert "because" in await client.text("/audit")
        await client.text("/audit/1", status=404)


async def test_a_read_only_console_offers_and_does_nothing(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client(read_only=True) as client:
        pages = [
            await client.text(path) for path in ("/", "/queue?name=orders", "/dead-letters/rows", "/dead-letters/1")
        ]
        assert not re.search(r"Pause|Resume|Replay…|Purge…|Discard…|Move…", " ".join(pages))
        assert "Read-only" in (await client.get("/")).text
        for path, fields in {
            "/acts/preview": {"act": "purge", "ids": "1"},
            "/acts/run": {"act": "purge", "selection": '{"kind": "dead_letters"}', "reason": "r"},
            "/acts/one/pause": {"queue": "orders", "reason": "r"},
            "/dead-letters/1/edit": {"body": "7", "headers": "", "reason": "r"},
        }.items():
            assert (await client.submit(path, **fields)).status_code in (400, 403), path
        assert (await client.get("/dead-letters/1/edit")).status_code == 403
        assert len((await client.submit("/acts/export", ids=["1"])).text.splitlines()) == 1
    assert len((await outbox.operations.dead_letters()).items) == 3
    assert not await outbox.operations.pauses()


async def test_the_database_refuses_what_a_read_only_console_would_write(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    viewer: OutboxOperations = outbox.app(read_only=True).state.live._site.operations  # type: ignore[attr-defined]
    for act in (
        viewer.purge([1], reason="r"),
        viewer.replay([1], reason="r"),
        viewer.pause("orders", reason="r"),
        viewer.park_key("customers", "ada", reason="r"),
        viewer.discard([4], reason="r"),
    ):
        with pytest.raises(DBAPIError, match="read-only transaction"):
            await act
    assert len(await viewer.queues()) == 4
    # The pool is shared, and its connections can write again.
    assert (await outbox.operations.purge([1], reason="r")).done == 1


async def test_pages_of_any_console_read_in_read_only_transactions(outbox: ConsoleOutbox) -> None:
    async with outbox.operations.reading() as session:
        assert session is not None
        with pytest.raises(DBAPIError, match="read-only transaction"):
            await outbox.operations.pause("orders", reason="r", session=session)


async def test_a_token_is_asked_for_once_and_is_in_no_address(outbox: ConsoleOutbox) -> None:
    token = TokenAccess()
    async with _client(outbox, access=token) as client:
        for path in ("/", "/dead-letters", "/live?page=/"):
            assert (await client.get(path)).headers["location"] == "/login"
        login = await client.get("/login")
        assert 'type="password"' in login.text
        wrong = await client.post("/login", data={"token": "guess"}, headers=SAME_ORIGIN)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
        response = await client.post("/login", data={"token": token.token}, headers=SAME_ORIGIN)
        cookie = response.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
        assert token.token not in response.headers["set-cookie"] + response.headers["location"]
        assert (await client.get("/")).status_code == 200
    async with _client(outbox, "evil.example", access=token) as stranger:
        assert (await stranger.get("/login")).status_code == 403


async def test_a_cookie_of_any_characters_is_not_the_token(outbox: ConsoleOutbox) -> None:
    token = TokenAccess()
    async with outbox.client(access=token) as client:
        cookie = f"{token._name}=\u00fc".encode("latin-1")
        response = await client.get("/", headers=[(b"cookie", cookie)])
        assert (response.status_code, response.headers["location"]) == (303, "/login")


async def test_a_login_exists_only_where_there_is_a_token(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        assert (await client.get("/login")).status_code == 404


async def test_bodies_and_headers_are_redacted_everywhere(outbox: ConsoleOutbox) -> None:
    secret = "4111-1111"  # noqa: S105 - nobody has this card
    headers = {"content-type": "application/json", "token": secret, "correlation_id": "c-1"}
    await outbox.backend.insert(NewRow("orders", f'"{secret}"'.encode(), headers, timer_id="t"))
    await outbox.bury(f'"{secret}"'.encode(), queue="mails", headers=headers)

    def redact(row: Any) -> Any:
        return replace(row, body=Body.of(b'"***"', "application/json"), headers={**row.headers, "token": "***"})

    async with outbox.client(redact=redact) as client:
        paths = ["/queue?name=orders", "/messages/1?body=raw", "/messages/1?body=hex", "/timers", "/search?q=c-1"]
        for path in [*paths, "/dead-letters/rows", "/dead-letters/1", "/dead-letters/1/edit"]:
            assert secret not in (await client.get(path)).text, path
        preview = await client.submit("/acts/preview", act="purge", ids=["1"])
        assert secret not in preview.text
        assert (await client.submit("/acts/export", ids=["1"])).status_code == 403
        # What was shown redacted and is not edited goes back as it was.
        given = {"body": '"***"', "headers": "content-type=application/json\ntoken=***\ncorrelation_id=c-2"}
        assert "Done" in words((await client.submit("/dead-letters/1/edit", **given, reason="r")).text)
    message: Message = (await outbox.operations.find(correlation_id="c-2")).messages[0]
    assert (message.body.data, message.headers["token"]) == (secret, secret)


async def test_a_theme_is_remembered_and_leads_back(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        response = await client.post("/theme", data={"theme": "dark", "back": "//evil.example/"})
        assert response.headers["location"] == "/evil.example/"
        assert 'data-theme="dark"' in (await client.get("/")).text
        assert (await client.post("/theme", data={"theme": "odd"})).status_code == 400
        # What answers a post cannot be asked for again: a preview leads back to its rows.
        await outbox.fill()
        preview = await client.submit("/acts/preview", act="purge", ids=["1"], back="dead-letters/rows")
        assert field(preview.text, "back") == "dead-letters/rows"


async def test_what_no_page_would_send_is_refused_with_a_sentence(outbox: ConsoleOutbox) -> None:
    await outbox.fill()
    async with outbox.client() as client:
        for ids in (["-1"], [str(2**70)], ["9" * 5000], ["1"] * 501):
            assert (await client.submit("/acts/preview", act="purge", ids=ids)).status_code == 400
        preview = await client.submit("/acts/preview", act="purge", ids=["1"])
        frozen = field(preview.text, "selection")
        for selection in ("[" * 100_000, frozen.replace("[1]", f"[{2**70}]"), frozen.replace("[1]", str([1] * 501))):
            response = await client.submit("/acts/run", act="purge", selection=selection, reason="r")
            assert response.status_code == 400
    assert len((await outbox.operations.dead_letters()).items) == 3


async def test_a_form_that_is_too_large_is_refused(outbox: ConsoleOutbox) -> None:
    async with outbox.client() as client:
        response = await client.post("/acts/preview", content=b"a=" + b"x" * (17 * 1024 * 1024))
    assert response.status_code == 400
    assert "larger than 16 MiB" in words(response.text)
