"""The admin pages: dead letters and keys to read, and what an operator can do there, with a reason."""

import json
import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.test import Client

from faststream_outbox.django import make_operations, publish


@pytest.fixture
def client(project: Any) -> Any:
    """An administrator who is logged in."""
    del project
    client = Client()
    client.force_login(User.objects.create_superuser("grace", password="x"))  # noqa: S106 - of a test
    return client


def dead_letter(project: Any, body: Any, *, key: str | None = None) -> int:
    with project.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_dlq (original_id, queue, entity_key, payload, headers, created_at, failure_reason, "
            "last_exception) VALUES (nextval(pg_get_serial_sequence('outbox', 'id')), 'orders', %s, %s, %s, "
            "now(), 'retry_terminal', 'ValueError: no such order\nTraceback …') RETURNING id",
            [key, json.dumps(body).encode(), '{"content-type": "application/json", "correlation_id": "request-42"}'],
        )
        return int(cursor.fetchone()[0])


def park(key: str) -> None:
    with transaction.atomic():
        publish({"step": 1}, queue="orders", key=key)
        publish({"step": 2}, queue="orders", key=key)

    async def act() -> None:
        async with make_operations() as operations:
            assert await operations.park_key("orders", key, reason="under <investigation>")

    async_to_sync(act)()


def audit(project: Any) -> list[tuple[Any, ...]]:
    with project.cursor() as cursor:
        cursor.execute("SELECT action, by, reason, count FROM outbox_audit ORDER BY id")
        return [tuple(row) for row in cursor.fetchall()]


def count(project: Any, table: str) -> int:
    with project.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return int(cursor.fetchone()[0])


def test_dead_letters_are_listed_filtered_and_read(project: Any, client: Any) -> None:
    letter = dead_letter(project, {"product": "<tea>"}, key="customer-7")
    listed = client.get("/admin/outbox/deadletter/").content.decode()
    assert "ValueError: no such order" in listed
    assert "customer-7" in listed
    for search, found in (("request-42", True), ("customer-7", True), ("request-43", False)):
        page = client.get("/admin/outbox/deadletter/", {"q": search, "queue": "orders"}).content.decode()
        assert ("ValueError" in page) == found
    shown = client.get(f"/admin/outbox/deadletter/{letter}/change/").content.decode()
    assert "&quot;product&quot;: &quot;&lt;tea&gt;&quot;" in shown
    assert "Traceback" in shown
    assert shown.count('<pre style="white-space: pre-wrap') == 3
    assert 'name="_save"' not in shown


def test_dead_letters_are_replayed_with_a_reason(project: Any, client: Any) -> None:
    letters = [dead_letter(project, number) for number in range(3)]
    chosen = {"action": "replay", "_selected_action": letters[:2]}
    asked = client.post("/admin/outbox/deadletter/", chosen).content.decode()
    assert "Why? The audit keeps it." in asked
    assert count(project, "outbox") == 0
    client.post("/admin/outbox/deadletter/", {**chosen, "reason": " "})
    assert count(project, "outbox") == 0
    done = client.post("/admin/outbox/deadletter/", {**chosen, "reason": "the shop is open again"}, follow=True)
    assert "Replay: 2 done, 0 skipped." in done.content.decode()
    assert (count(project, "outbox"), count(project, "outbox_dlq")) == (2, 1)
    assert audit(project) == [("replay", "grace", "the shop is open again", 2)]
    chosen = {"action": "purge", "_selected_action": letters[2:], "reason": "nobody needs it"}
    client.post("/admin/outbox/deadletter/", chosen)
    assert count(project, "outbox_dlq") == 0
    assert "nobody needs it" in client.get("/admin/outbox/auditentry/").content.decode()


@pytest.mark.parametrize("reason", [{}, {"reason": "the shop is open again"}], ids=["without a reason", "with one"])
@pytest.mark.parametrize("act", ["replay", "purge"])
def test_acts_on_dead_letters_that_are_gone_say_that_nothing_was_done(
    project: Any, client: Any, act: str, reason: dict[str, str]
) -> None:
    chosen = {"action": act, "_selected_action": [dead_letter(project, 1) + 1], **reason}
    done = client.post("/admin/outbox/deadletter/", chosen, follow=True).content.decode()
    assert "Nothing was done: these dead letters are gone." in done
    assert "Why? The audit keeps it." not in done
    assert "0 done" not in done
    assert audit(project) == []


def test_pages_of_the_outbox_lead_back_to_it(project: Any, client: Any) -> None:
    chosen = {"action": "purge", "_selected_action": [dead_letter(project, 1)]}
    asked = client.post("/admin/outbox/deadletter/", chosen)
    for page in (client.get("/admin/outbox/key/"), asked):
        [crumbs] = re.findall(r'<div class="breadcrumbs">(.*?)</div>', page.content.decode(), re.DOTALL)
        assert '<a href="/admin/outbox/">Outbox</a>' in crumbs


def test_keys_are_listed_and_acted_on_with_a_reason(project: Any, client: Any) -> None:
    park("customer-7")
    listed = client.get("/admin/outbox/key/").content.decode()
    assert "under &lt;investigation&gt;" in listed
    assert "customer-7" not in client.get("/admin/outbox/key/", {"state": "retrying"}).content.decode()
    assert "customer-7" not in client.get("/admin/outbox/key/", {"queue": "mails"}).content.decode()
    given = {"queue": "orders", "key": "customer-7"}
    refused = client.post("/admin/outbox/key/", {**given, "act": "skip", "reason": ""}, follow=True)
    assert "Reason is empty" in refused.content.decode()
    done = client.post("/admin/outbox/key/", {**given, "act": "skip", "reason": "by phone"}, follow=True)
    assert "done for key customer-7" in done.content.decode()
    assert count(project, "outbox_dlq") == 1
    client.post("/admin/outbox/key/", {**given, "act": "park", "reason": "once more"})
    client.post("/admin/outbox/key/", {**given, "act": "release", "reason": "all is well"})
    gone = client.post(
        "/admin/outbox/key/", {"queue": "orders", "key": "x", "act": "retry", "reason": "r"}, follow=True
    )
    assert "Nothing was done" in gone.content.decode()
    acts = [
        ("park_key", "by hand"),
        ("skip_key", "by phone"),
        ("park_key", "once more"),
        ("release_key", "all is well"),
    ]
    assert [(action, by) for action, by, *_ in audit(project)][1:] == [(action, "grace") for action, _ in acts[1:]]


def test_waiting_messages_are_shown(client: Any) -> None:
    park("customer-7")
    assert "customer-7" in client.get("/admin/outbox/message/").content.decode()
    shown = client.get("/admin/outbox/message/2/change/").content.decode()
    assert "&quot;step&quot;: 2" in shown
    assert client.get("/admin/outbox/message/add/").status_code == 403


def test_a_user_who_may_only_view_cannot_act(project: Any) -> None:
    park("customer-7")
    letter = dead_letter(project, 1)
    user = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_key", "view_deadletter"]))
    client = Client()
    client.force_login(user)
    assert "Park" not in client.get("/admin/outbox/key/").content.decode()
    given = {"queue": "orders", "key": "customer-7", "act": "skip", "reason": "why not"}
    assert client.post("/admin/outbox/key/", given).status_code == 403
    client.post("/admin/outbox/deadletter/", {"action": "replay", "_selected_action": [letter], "reason": "r"})
    assert count(project, "outbox_dlq") == 1
    assert client.get("/admin/outbox/message/").status_code == 403
