"""Handles each message of other brokers once, by recording its id in the transaction of its handler."""

from faststream_outbox.inbox.inbox import Inbox
from faststream_outbox.inbox.middleware import InboxSession

__all__ = ["Inbox", "InboxSession"]
