"""The console: a web page for operators, over the same calls as the command line."""

from faststream_outbox._installation import needs_extra

try:
    import jinja2 as _jinja2
    import starlette as _starlette
except ImportError as error:
    raise ImportError(
        f"{error.name} is not installed. {needs_extra('The console', 'console')}.", name=error.name
    ) from error

from faststream_outbox.console.access import Access, Action
from faststream_outbox.console.application import make_console

__all__ = ["Access", "Action", "make_console"]

del _jinja2, _starlette
