"""The program `faststream-outbox`, for what runs without a line of Python."""
