"""What operators do with many rows of the Postgres store."""

from faststream_outbox.storage.postgres.acts.acts import PostgresActs

__all__ = ["PostgresActs"]
