"""`PostgresActs`: everything that operators do with many rows of the Postgres store."""

from faststream_outbox.storage.postgres.acts.audit import AuditActs
from faststream_outbox.storage.postgres.acts.dead_letters import DeadLetterActs
from faststream_outbox.storage.postgres.acts.keys import KeyActs
from faststream_outbox.storage.postgres.acts.messages import MessageActs
from faststream_outbox.storage.postgres.acts.selections import SelectionActs


class PostgresActs(SelectionActs, MessageActs, DeadLetterActs, KeyActs, AuditActs):
    """Finds and changes rows by statements on the session that is given."""
