"""How a handler's parameter is looked up in FastStream's context, without a detour."""

from typing import Any

from faststream_outbox._faststream import ContextField


class OnTheLoop(ContextField):
    """Looks a name up right here; FastDepends sends what it cannot await to a thread, for every message.

    Example:
        OutboxMessage = Annotated[_OutboxMessage, OnTheLoop("message")]

    """

    async def use(self, /, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # it is awaited
        """Look it up."""
        return super().use(**kwargs)
