"""The application of Django: `INSTALLED_APPS = [..., "faststream_outbox.django"]`."""

from django.apps import AppConfig
from django.core.checks import Tags, register


class OutboxConfig(AppConfig):
    """The tables, the checks and the admin pages of an outbox."""

    name = "faststream_outbox.django"
    label = "outbox"
    verbose_name = "Outbox"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from faststream_outbox.django.checks import check_database, check_tables  # noqa: PLC0415 - settings are there now

        register(check_database)
        register(Tags.database)(check_tables)
