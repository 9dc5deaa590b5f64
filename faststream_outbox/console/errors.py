"""What a page answers instead of itself: each error is a status and a sentence for the user."""

from faststream_outbox.storage.errors import sqlstate


class PageError(Exception):
    """A page cannot be shown, or an act not be done; the text says why and what to do."""

    status = 400
    title = "This cannot be done"


class RefusedError(PageError):
    """The user has no right to do that."""

    status = 403
    title = "Not allowed"


class MissingError(PageError):
    """What was asked for is not there."""

    status = 404
    title = "Not found"


def title_of(error: Exception) -> tuple[str, int]:
    """Return the title and the status of the page for an error of the database."""
    state = sqlstate(error)
    if state in ("42P01", "42703"):
        return "A table or a column is missing", 503
    if state.startswith("22"):  # a value that no column takes
        return PageError.title, PageError.status
    return "The database did not answer", 503
