"""The doctor as one of the operations on an outbox."""

from faststream_outbox.operations.base import OperationsBase
from faststream_outbox.operations.doctor.diagnosis import diagnose
from faststream_outbox.operations.doctor.examination import DoctorLimits, Pool
from faststream_outbox.operations.doctor.finding import Finding
from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.schema.grants import RoleKind


class DoctorOperations(OperationsBase):
    """The operation that says what is wrong."""

    # What the subscribers of a broker need of its engine's pool.
    _pool: Pool | None = None
    _kind: RoleKind = "operator"

    async def doctor(self, *, kind: RoleKind | None = None, limits: DoctorLimits | None = None) -> list[Finding]:
        """Look for everything that is known to go wrong with an outbox; return what was found, worst first.

        Nothing is changed. No check reads more than some thousand rows, each has a time limit, and one that fails is a
        finding. It takes less than a second; 8 seconds longer if a dead process seems to hold messages.

        Args:
            kind: What the role of the engine is for: `"producer"`, `"consumer"`, `"operator"` or `"viewer"`. Its rights
                are checked. By default `"operator"`; of `broker.operations` `"consumer"`.
            limits: From where on something is named.

        Example:
            for finding in await operations.doctor():
                print(finding.severity, finding.what, finding.cure)

        """
        store = self._store
        if not isinstance(store, PostgresStore) or store.engine is None:
            raise RuntimeError("The doctor examines a database: make the operations, or the broker, with an engine.")
        return await diagnose(
            store.engine,
            outbox_table=store.outbox_table,
            dlq_table=store.dlq_table,
            shards_table=store.shards_table,
            control_table=self.control_table,
            audit_table=self.audit_table,
            nodes_table=self.nodes_table,
            kind=kind or self._kind,
            limits=limits,
            pool=self._pool,
        )

    def examine_for_broker(self, pool: Pool) -> None:
        """Set what the subscribers of a broker need, for the check of the pool."""
        self._pool, self._kind = pool, "consumer"
