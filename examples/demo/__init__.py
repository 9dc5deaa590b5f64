"""`make demo`: a shop with an outbox, two workers of which one is killed, and a check: nothing lost, all in order."""
