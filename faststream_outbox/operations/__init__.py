"""What operators need: look into an outbox and act on it, by Python; the command line uses the same calls."""

from faststream_outbox.operations.acting.key_acts import KeyBusyError
from faststream_outbox.operations.acts import ActResult, Progress
from faststream_outbox.operations.audit import AuditEntry
from faststream_outbox.operations.base import OperationsTableError
from faststream_outbox.operations.bodies import Body
from faststream_outbox.operations.doctor import DoctorLimits, Finding, Severity, diagnose
from faststream_outbox.operations.operations import OutboxOperations
from faststream_outbox.operations.overviews import DeadLetterGroup, Found, KeyDetail, QueueOverview
from faststream_outbox.operations.selections import Selection
from faststream_outbox.operations.views import DeadLetter, Message, Page
from faststream_outbox.storage.operating.acts import AuditFilter
from faststream_outbox.storage.operating.control import Pause
from faststream_outbox.storage.operating.filters import COUNT_CAP, Count, DeadLetterFilter, MessageFilter
from faststream_outbox.storage.operating.registry import NodeOverview
from faststream_outbox.storage.ordering.states import KeyState
from faststream_outbox.storage.schema.grants import RoleKind, grants_sql

__all__ = [
    "COUNT_CAP",
    "ActResult",
    "AuditEntry",
    "AuditFilter",
    "Body",
    "Count",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DoctorLimits",
    "Finding",
    "Found",
    "KeyBusyError",
    "KeyDetail",
    "KeyState",
    "Message",
    "MessageFilter",
    "NodeOverview",
    "OperationsTableError",
    "OutboxOperations",
    "Page",
    "Pause",
    "Progress",
    "QueueOverview",
    "RoleKind",
    "Selection",
    "Severity",
    "diagnose",
    "grants_sql",
]
