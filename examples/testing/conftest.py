"""The fixture `outbox_postgres`: a fresh database for each test that asks for it."""

pytest_plugins = ["faststream_outbox.embedded.pytest_plugin"]
