"""The tables as models, for reading; the migrations create them with SQL, and Django itself never changes them."""

from typing import Any, ClassVar

from django.db import models

from faststream_outbox.operations import Body


class _Content(models.Model):
    """What messages and dead letters share."""

    id = models.BigAutoField(primary_key=True)
    queue = models.CharField(max_length=255)
    entity_key = models.TextField("key", null=True)  # noqa: DJ001 - NULL is a message without a key
    payload = models.BinaryField()
    headers = models.JSONField(null=True)
    timer_id = models.CharField("timer", max_length=255, null=True)  # noqa: DJ001 - NULL is a message that is no timer
    created_at = models.DateTimeField("published at")
    attempts_count = models.BigIntegerField("attempts", default=0)
    deliveries_count = models.BigIntegerField("deliveries", default=0)
    first_attempt_at = models.DateTimeField(null=True)
    last_attempt_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.queue} {self.pk}"

    @property
    def body(self) -> Body:
        """The body, decoded as its content type says."""
        headers: dict[str, Any] = self.headers if isinstance(self.headers, dict) else {}
        content_type = headers.get("content-type")
        return Body.of(bytes(self.payload), content_type if isinstance(content_type, str) else None)


class Message(_Content):
    """A message that waits; times that may be infinite (`next_attempt_at`, `lease_expires_at`) are left out."""

    class Meta:
        managed = False
        db_table = "outbox"


class DeadLetter(_Content):
    """A message that failed for good."""

    original_id = models.BigIntegerField()
    failed_at = models.DateTimeField()
    failure_reason = models.CharField("reason", max_length=64)
    last_exception = models.TextField(null=True)  # noqa: DJ001 - NULL is a failure without an exception

    class Meta:
        managed = False
        db_table = "outbox_dlq"
        ordering: ClassVar = ["-id"]


class Key(Message):
    """A key that is blocked; its admin page reads the keys through the operations."""

    class Meta:
        proxy = True
        verbose_name = "blocked key"


class AuditEntry(models.Model):
    """What an operator did."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    by = models.TextField()
    action = models.CharField(max_length=64)
    reason = models.TextField()
    target = models.JSONField(default=dict)
    count = models.BigIntegerField(default=0)

    class Meta:
        managed = False
        db_table = "outbox_audit"
        ordering: ClassVar = ["-id"]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.action} by {self.by}"


class Pause(models.Model):
    """A queue that an operator has paused."""

    pk = models.CompositePrimaryKey("queue", "kind")
    queue = models.CharField(max_length=255)
    kind = models.CharField(max_length=64, default="pause")
    until = models.DateTimeField(null=True)
    reason = models.TextField()
    by = models.TextField()
    since = models.DateTimeField()

    class Meta:
        managed = False
        db_table = "outbox_control"

    def __str__(self) -> str:
        return str(self.queue)


class Node(models.Model):
    """A process that reads queues; which ones is left out, because arrays need one more application of Django."""

    name = models.CharField(max_length=64, primary_key=True)
    host = models.TextField()
    pid = models.IntegerField()
    version = models.TextField()
    started_at = models.DateTimeField()
    strategy = models.TextField(null=True)  # noqa: DJ001 - NULL is a process without keys

    class Meta:
        managed = False
        db_table = "outbox_nodes"

    def __str__(self) -> str:
        return str(self.name)
