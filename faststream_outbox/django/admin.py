"""Admin pages: messages, dead letters and blocked keys to read, and acts of operators, each with a reason."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from asgiref.sync import async_to_sync
from django.contrib import admin, messages
from django.contrib.admin import helpers
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html

from faststream_outbox.django.database import make_operations
from faststream_outbox.django.models import AuditEntry, DeadLetter, Key, Message
from faststream_outbox.operations import KeyState, OutboxOperations, Page
from faststream_outbox.storage.checks import check_reason

T = TypeVar("T")

# What an operator can do to a key, as the names of methods.
KEY_ACTS: Final = {"retry": "Retry now", "skip": "Skip its first message", "park": "Park", "release": "Release"}
# Texts with long lines, such as tracebacks, which the page would cut at its edge.
_WRAPPED: Final = '<pre style="white-space: pre-wrap; overflow-wrap: anywhere">{}</pre>'
STATES: Final = ("parked", "retrying", "delayed", "expired", "in_flight")


def _operate(function: Callable[[OutboxOperations], Awaitable[T]]) -> T:
    """Call the operations, which are async, on a connection of their own: they commit by themselves."""

    async def call() -> T:
        async with make_operations() as operations:
            return await function(operations)

    return async_to_sync(call)()


class _ReadOnlyAdmin(admin.ModelAdmin):
    """Shows rows. Nothing is added, changed or deleted by hand: a change of a row in use would break its lease."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - the signature is Django's
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 - same
        """Return False: the page of a row is for reading."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:  # noqa: ARG002 - same
        """Return False."""
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may act on rows: the permission to change them."""
        options = self.opts
        return bool(request.user.has_perm(f"{options.app_label}.change_{options.model_name}"))

    @admin.display(description="body")
    def shown_body(self, row: Any) -> str:
        """Return the body for people to read."""
        return str(format_html(_WRAPPED, row.body.pretty()))

    @admin.display(description="headers")
    def shown_headers(self, row: Any) -> str:
        """Return the headers, one on each line."""
        return str(format_html(_WRAPPED, json.dumps(row.headers or {}, indent=2, ensure_ascii=False)))

    @admin.display(description="exception")
    def shown_exception(self, row: Any) -> str:
        """Return the traceback as it was stored."""
        return str(format_html(_WRAPPED, row.last_exception or ""))


@admin.register(Message)
class MessageAdmin(_ReadOnlyAdmin):
    """The messages that wait."""

    list_display = ("id", "queue", "entity_key", "created_at", "attempts_count", "deliveries_count")
    list_filter = ("queue",)
    search_fields = ("entity_key__exact", "timer_id__exact")
    ordering = ("id",)
    fields = (
        *("id", "queue", "entity_key", "timer_id", "created_at", "attempts_count", "deliveries_count"),
        *("first_attempt_at", "last_attempt_at", "shown_headers", "shown_body"),
    )


@admin.register(DeadLetter)
class DeadLetterAdmin(_ReadOnlyAdmin):
    """The messages that failed for good: read them, send them again, or delete them."""

    list_display = ("id", "queue", "entity_key", "failed_at", "failure_reason", "exception_line", "attempts_count")
    list_filter = ("queue", "failure_reason", "failed_at")
    search_fields = ("entity_key__exact", "headers__correlation_id__icontains", "last_exception__icontains")
    actions = ("replay", "purge")
    fields = (
        *("id", "original_id", "queue", "entity_key", "timer_id", "created_at", "failed_at", "failure_reason"),
        *("attempts_count", "deliveries_count", "shown_exception", "shown_headers", "shown_body"),
    )

    @admin.display(description="exception")
    def exception_line(self, letter: DeadLetter) -> str:
        """Return the first line of the exception."""
        return (letter.last_exception or "").partition("\n")[0][:200]

    @admin.action(description="Replay: put back into the outbox", permissions=["operate"])
    def replay(self, request: HttpRequest, selected: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Ask why, and put dead letters back into the outbox."""
        return self._act(request, selected, "replay", "Put these dead letters back into the outbox?")

    @admin.action(description="Purge: delete for good", permissions=["operate"])
    def purge(self, request: HttpRequest, selected: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Ask why, and delete dead letters."""
        return self._act(request, selected, "purge", "Delete these dead letters for good?")

    def _act(
        self, request: HttpRequest, selected: QuerySet[DeadLetter], act: str, question: str
    ) -> HttpResponse | None:
        reason, by = request.POST.get("reason", ""), request.user.get_username()
        ids = list(selected.values_list("pk", flat=True))
        if not ids:
            self.message_user(request, "Nothing was done: these dead letters are gone.", messages.WARNING)
            return None
        try:
            check_reason(reason)
        except ValueError as error:
            if "reason" in request.POST:
                self.message_user(request, str(error), messages.ERROR)
            return TemplateResponse(
                request, "admin/outbox/reason.html", self._question(request, selected, act, question)
            )
        result = _operate(lambda operations: getattr(operations, act)(ids, reason=reason, by=by))
        level = messages.SUCCESS if result.done else messages.WARNING
        self.message_user(request, f"{act}: {result.done} done, {len(result.skipped)} skipped.", level)
        for letter_id, why in list(result.skipped.items())[:10]:
            self.message_user(request, f"{letter_id} was left out: {why}", messages.WARNING)
        return None

    def _question(
        self, request: HttpRequest, selected: Sequence[DeadLetter], act: str, question: str
    ) -> dict[str, Any]:
        return {
            **self.admin_site.each_context(request),
            "title": question,
            "opts": self.opts,
            "act": act,
            "letters": selected,
            "checkbox_name": helpers.ACTION_CHECKBOX_NAME,
        }


@admin.register(Key)
class KeyAdmin(_ReadOnlyAdmin):
    """The keys that are blocked: why, what waits behind them, and what can be done."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the keys, or act on one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self._act(request)
        state, queue = request.GET.get("state") or None, request.GET.get("queue") or None
        try:
            page = self._keys(state if state in STATES else None, queue, request.GET.get("after") or None)
        except ValueError as error:  # an `after` of another list, a queue that cannot exist
            self.message_user(request, str(error), messages.ERROR)
            page = Page([])
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Blocked keys",
            "opts": self.opts,
            "page": page,
            "state": state,
            "states": STATES,
            "queue": queue or "",
            "acts": KEY_ACTS if self.has_operate_permission(request) else {},
        }
        return TemplateResponse(request, "admin/outbox/keys.html", context)

    def _keys(self, state: Any, queue: str | None, after: str | None) -> Page[KeyState]:
        return _operate(lambda operations: operations.keys(state, queue=queue, after=after))

    def _act(self, request: HttpRequest) -> HttpResponse:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        given = request.POST
        act, queue, key, reason = (given.get(name, "") for name in ("act", "queue", "key", "reason"))
        if act not in KEY_ACTS:
            raise PermissionDenied
        by = request.user.get_username()
        try:
            done = _operate(lambda operations: getattr(operations, f"{act}_key")(queue, key, reason=reason, by=by))
        except ValueError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            if done is not None and done is not False:  # a skipped message is named by its id
                self.message_user(request, f"{KEY_ACTS[act]}: done for key {key} of queue {queue}.", messages.SUCCESS)
            else:
                self.message_user(
                    request, f"Nothing was done: key {key} is being handled, or is gone.", messages.WARNING
                )
        return HttpResponseRedirect(request.get_full_path())


@admin.register(AuditEntry)
class AuditEntryAdmin(_ReadOnlyAdmin):
    """What operators did."""

    list_display: ClassVar = ("at", "action", "by", "reason", "count")
    list_filter: ClassVar = ("action",)
