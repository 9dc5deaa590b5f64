"""Who handles: the name under which a handler's messages are recorded, and that no two handlers go by one."""

import inspect
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Table

from faststream_outbox.storage.checks import check_name


class Consumer:
    """A name, and the one subscriber at a time that goes by it."""

    def __init__(self, name: str) -> None:
        self.name = check_name("consumer", name)
        # When old records are next looked for.
        self.clean_at = time.monotonic()
        self._subscriber: weakref.ref[Any] | None = None

    def serve(self, subscriber: Any) -> None:
        """Refuse a second subscriber while the first one runs."""
        known = None if self._subscriber is None else self._subscriber()
        if known is None or not known.running:
            self._subscriber = weakref.ref(subscriber)
        elif known is not subscriber:
            raise RuntimeError(
                f"The inbox of {self.name!r} serves two subscribers, and of two that receive the same message one "
                "would skip it: give each an inbox of its own, such as inbox.named('…'). Two that share the messages "
                "of one group take two inboxes with one name."
            )


# Several inboxes without a name may share a table, and two of them may come to the same name.
_derived: weakref.WeakKeyDictionary[Table, dict[str, Consumer]] = weakref.WeakKeyDictionary()


def derived_consumer(table: Table, subscriber: Any) -> Consumer:
    """Return the consumer that is named after a subscriber's handler."""
    name = derive_name(subscriber)
    known = _derived.setdefault(table, {})
    return known.get(name) or known.setdefault(name, Consumer(name))


# What FastStream's subscribers call the place that they listen to, and those with whom they share its messages. Others
# may come with a new FastStream, and must not rename what is stored.
_PLACES: Final = ("topic", "subject", "channel", "queue", "group_id")


def derive_name(subscriber: Any) -> str:
    """Name a subscriber after its handler and the place it listens to: `service.bill@orders`.

    Both are the same after a restart, and in every process of a service.
    """
    functions = [inspect.unwrap(call.handler._declared_call) for call in subscriber.calls]  # noqa: SLF001 - as FastStream does
    function = functions[0] if len(functions) == 1 else None
    name = getattr(function, "__qualname__", None)
    if name is None:
        raise RuntimeError(
            "An inbox without a consumer is named after its handler, and this subscriber has "
            + ("several" if function is None else f"a {type(function).__name__}, which has no name")
            + ": name it, with Inbox(…, consumer='…') or inbox.named('…')."
        )
    places = subscriber.get_log_context(None)
    place = ",".join(str(places[each]) for each in _PLACES if places.get(each))
    return f"{_module(function)}.{name}@{place}"


def _module(function: Any) -> str:
    """Name a function's module, by the name that others would import it by, however the program was started."""
    if function.__module__ != "__main__":
        return str(function.__module__)
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec else Path(file).stem if file else "__main__"
