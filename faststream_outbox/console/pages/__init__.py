"""The pages, each a function that reads what it shows."""

from typing import Final

from faststream_outbox.console.pages.dead_letters import dead_letter, edit_dead_letter, groups, letters
from faststream_outbox.console.pages.jobs import job
from faststream_outbox.console.pages.keys import key, keys
from faststream_outbox.console.pages.messages import message, queue, search
from faststream_outbox.console.pages.others import audit, audit_entry, doctor, nodes, timers
from faststream_outbox.console.pages.overview import overview
from faststream_outbox.console.visit import Page

PAGES: Final = (
    Page("/", overview, "", is_live=True),
    Page("/queue", queue, "", is_live=True),
    Page("/messages/{id}", message, ""),
    Page("/search", search, ""),
    Page("/keys", keys, "keys", is_live=True),
    Page("/key", key, "keys", is_live=True),
    Page("/dead-letters", groups, "dead-letters", is_live=True),
    Page("/dead-letters/rows", letters, "dead-letters"),
    Page("/dead-letters/{id}", dead_letter, "dead-letters"),
    Page("/dead-letters/{id}/edit", edit_dead_letter, "dead-letters"),
    Page("/timers", timers, "timers", is_live=True),
    Page("/nodes", nodes, "nodes", is_live=True),
    Page("/audit", audit, "audit", is_live=True),
    Page("/audit/{id}", audit_entry, "audit"),
    Page("/doctor", doctor, "doctor"),
    Page("/jobs/{id}", job, "", is_live=True),
)
