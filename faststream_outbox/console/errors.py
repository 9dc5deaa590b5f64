"""What a page answers instead of itself: each error is a status and a sentence for the user."""


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
