"""Relays under faults: they, the server that they send to and Postgres are killed, and what arrived is checked."""
