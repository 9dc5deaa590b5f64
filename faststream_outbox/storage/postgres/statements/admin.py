"""The columns that operators' statements read."""

from typing import Final

from faststream_outbox.storage.postgres.statements.statement import epoch

# The fields of `DeadLetterRow`, in their order.
LETTER: Final = ", ".join(
    [
        *("d.id", "d.original_id", "d.queue", "d.entity_key", "d.payload", "d.headers::text", "d.timer_id"),
        *("d.attempts_count", "d.deliveries_count", epoch("d.created_at"), epoch("d.first_attempt_at")),
        *(epoch("d.last_attempt_at"), epoch("d.failed_at"), "d.failure_reason", "d.last_exception"),
    ]
)
