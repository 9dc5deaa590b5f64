"""Acts: a preview of what they would change, and a job that does it and shows its progress."""

from typing import Final

from faststream_outbox.console.acts.edits import edit
from faststream_outbox.console.acts.exports import export
from faststream_outbox.console.acts.jobs import stop_job
from faststream_outbox.console.acts.rows import preview, run
from faststream_outbox.console.acts.single import ask_single, do_single

# Method, path, and what answers. An act is asked for by GET where it is for one thing, and previewed where it is for
# rows; only POST changes anything.
ACT_ROUTES: Final = (
    ("POST", "/acts/preview", preview),
    ("POST", "/acts/run", run),
    ("POST", "/acts/export", export),
    ("GET", "/acts/one/{act}", ask_single),
    ("POST", "/acts/one/{act}", do_single),
    ("POST", "/jobs/{id}/stop", stop_job),
    ("POST", "/dead-letters/{id}/edit", edit),
)
