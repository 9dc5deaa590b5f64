"""The shortcut around FastStream's per-message machinery.

What it gains: `make bench ARGS="--only fast-path"` prints the Python time of a message on both ways, measured without a
database; the fast path takes about FIGURE of FastStream's.
What holds it equal: `tests/subscriber/fast_path/test_fast_path.py` sends the same messages both ways and compares outcomes,
log records, context and exceptions. A change of FastStream's `process_message` has to be made here too.
"""

from faststream_outbox.subscriber.fast_path.fast_path import FastPath, has_fast_path

__all__ = ["FastPath", "has_fast_path"]
