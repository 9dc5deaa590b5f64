"""`make demo`: a small shop on an outbox, and a check that no message was lost, doubled or made up."""
