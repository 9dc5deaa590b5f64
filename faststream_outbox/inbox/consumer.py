"""The name under which a handler's messages are recorded, which no two handlers may share."""

import inspect
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.checks import check_name


class Consumer:
    """A name, and the one running subscriber that uses it."""

    def __init__(self, name: str) -> None:
        self.name = check_name("consumer", name)
        # When old records are deleted next, by `time.monotonic`.
        self.clean_at = time.monotonic()
        self._subscriber: weakref.ref[Any] | None = None

    def bind(self, subscriber: Any) -> None:
        """Give the name to a subscriber; raise while another running subscriber has it."""
        known = None if self._subscriber is None else self._subscriber()
        if known is None or not known.running:
            self._subscriber = weakref.ref(subscriber)
        elif known is not subscriber:
            raise RuntimeError(
                f"The inbox of {self.name!r} serves two subscribers, and if both receive a message one would skip it: "
                "give each subscriber its own inbox, such as inbox.named('…'). Two that share the messages of one "
                "group need two inboxes with the same name."
            )


# Shared by the unnamed inboxes of a table, because two of them may derive the same name.
_derived: weakref.WeakKeyDictionary[Table, dict[str, Consumer]] = weakref.WeakKeyDictionary()


def derived_consumer(table: Table, subscriber: Any) -> Consumer:
    """Return the consumer with the name of a subscriber's handler."""
    name = derive_name(subscriber)
    known = _derived.setdefault(table, {})
    return known.get(name) or known.setdefault(name, Consumer(name))


# The names under which FastStream's subscribers log their source and group. A fixed list, because a name that a new
# FastStream adds must not change stored names.
_SOURCES: Final = ("topic", "subject", "channel", "queue", "group_id")


def derive_name(subscriber: Any) -> str:
    """Return a name of a subscriber's handler and source: `service.bill@orders`.

    It is the same after a restart, and in every process of a service.
    """
    functions = [inspect.unwrap(call.handler._declared_call) for call in subscriber.calls]  # noqa: SLF001 - as FastStream does
    function = functions[0] if len(functions) == 1 else None
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise RuntimeError(
            "An inbox without a consumer uses the name of its handler, and this subscriber has "
            + ("several" if function is None else f"a {type(function).__name__}, which has no name")
            + ": give a name with Inbox(…, consumer='…') or inbox.named('…')."
        )
    context = subscriber.get_log_context(None)
    source = ",".join(str(context[each]) for each in _SOURCES if context.get(each))
    return f"{_module(function)}.{name}@{source}"


def _module(function: Any) -> str:
    """Return the name by which a function's module is imported, also when it runs as `__main__`."""
    if function.__module__ != "__main__":
        return str(function.__module__)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec else Path(file).stem if file else "__main__"
