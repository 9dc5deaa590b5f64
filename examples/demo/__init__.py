"""`make demo`: a small shop on an outbox, an app that is killed on the way, and a check that no message was lost."""
