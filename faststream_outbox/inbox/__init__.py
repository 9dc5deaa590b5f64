"""Messages from outside, each handled once: its id is recorded in the transaction of its handler."""

from faststream_outbox.inbox.inbox import Inbox
from faststream_outbox.inbox.middleware import InboxSession

__all__ = ["Inbox", "InboxSession"]
