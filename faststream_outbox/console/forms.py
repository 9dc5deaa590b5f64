"""What a form of the console has sent."""

from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from faststream_outbox.console.errors import PageError
from faststream_outbox.storage.checks import check_reason

# The largest field is the body of a message that is edited.
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_FIELDS: Final = 2_000


# Where a request keeps the page that its form was on, for the page of an error.
BACK: Final = "faststream_outbox.console.back"


class Form:
    """The fields of a form; a field may have several values."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        """Return the first value of a field; an empty text if it was not sent."""
        return self._fields.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self._fields.get(name, [])

    @property
    def back(self) -> str:
        """The page of the console that the form was on."""
        return self.get("back").lstrip("/\\")


async def read_form(request: Request) -> Form:
    """Return the fields of a form, each as it was sent; raise `PageError` for one that is too large."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BYTES:
            raise PageError(f"The form is larger than {_MOST_BYTES // 1024 // 1024} MiB.")
        parts.append(part)
    try:
        found = parse_qs(
            b"".join(parts).decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, strict_parsing=bool(size)
        )
    except ValueError as error:
        raise PageError(f"The form cannot be read: {error}.") from error
    form = Form(found)
    request.scope[BACK] = form.back
    return form


def required(form: Form, name: str, what: str) -> str:
    """Return a field that must be filled in."""
    value = form.get(name).strip()
    if not value:
        raise PageError(f"{what} is missing: fill it in.")
    return value


def reason_of(form: Form) -> str:
    """Return why an act is done; raise an error that can be shown if nothing is said, or too much."""
    return check_reason(required(form, "reason", "The reason"))
