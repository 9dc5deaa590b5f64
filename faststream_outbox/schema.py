"""The tables, under the name by which programs for the original package import them."""

from faststream_outbox.storage import make_dlq_table, make_outbox_table

__all__ = ["make_dlq_table", "make_outbox_table"]
