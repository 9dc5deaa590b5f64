"""The program `faststream-outbox`, run as one runs it."""
