"""What the outbox costs, measured on a Postgres of its own: `python -m benchmarks --help`."""
