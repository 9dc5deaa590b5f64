"""The broker and its routers, on which users declare subscribers and publishers."""

# First, and here: the `__init__.py` of the original package imports a `faststream_outbox.broker` too. Where both
# packages were installed into one folder, this file is the one that Python finds, whichever package came last.
from faststream_outbox import _installation  # noqa: F401 - raises where two packages are mixed
from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.broker.router import OutboxRoute, OutboxRouter

__all__ = ["OutboxBroker", "OutboxRoute", "OutboxRouter"]
