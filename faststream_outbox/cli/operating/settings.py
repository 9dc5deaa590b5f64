"""The settings of the commands of operators."""

from collections.abc import Collection
from typing import Final

from pydantic import Field

from faststream_outbox.cli.settings import OutboxSettings, keys_of

# The tables beside the outbox that have a setting.
_OTHERS: Final = ("dlq", "control", "audit", "nodes")


class OperatorSettings(OutboxSettings):
    """Where the outbox is: the database and the tables, or the application that knows them."""

    dlq_table: str | None = Field(
        default=None, description="The dead-letter table; by default that of --table with _dlq, if it exists."
    )
    control_table: str | None = Field(
        default=None, description="The table of pauses; by default that of --table with _control, if it exists."
    )
    audit_table: str | None = Field(
        default=None, description="The table of what operators did; by default with _audit, if it exists."
    )
    nodes_table: str | None = Field(
        default=None, description="The table of processes; by default with _nodes, if it exists."
    )
    app: str | None = Field(
        default=None,
        description="An application to take the database and the tables from: module:attribute of its OutboxBroker, "
        "such as service:broker.",
    )

    @classmethod
    def keys_of_other_commands(cls) -> Collection[str]:
        """Return the keys of the relay, which may have the same file."""
        from faststream_outbox.cli.relay.settings import RelaySettings  # noqa: PLC0415 - only with a file

        return keys_of(RelaySettings)

    def name_of(self, kind: str) -> str:
        """Return the name of a table beside the outbox: the one that was given, or that of the outbox and the kind."""
        return getattr(self, f"{kind}_table", None) or f"{self.table}_{kind}"

    @property
    def given_tables(self) -> list[str]:
        """The kinds of tables that were named, and so must exist."""
        return [kind for kind in _OTHERS if getattr(self, f"{kind}_table") is not None]
