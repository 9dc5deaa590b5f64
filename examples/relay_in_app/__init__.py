"""`python -m examples.relay_in_app`: announce orders over NATS, also across a restart of NATS."""
