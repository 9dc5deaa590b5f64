"""`python -m examples.relay_in_app`: orders that are announced over NATS, which is restarted meanwhile."""
