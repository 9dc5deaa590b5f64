"""The doctor: looks for everything that is known to go wrong with an outbox, and says what mends it."""

from faststream_outbox.operations.doctor.diagnosis import diagnose
from faststream_outbox.operations.doctor.examination import DoctorLimits
from faststream_outbox.operations.doctor.finding import Finding, Severity

__all__ = ["DoctorLimits", "Finding", "Severity", "diagnose"]
