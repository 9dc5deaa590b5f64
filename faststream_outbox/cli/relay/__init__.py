"""The command `relay`: sends the rows of an outbox to another broker."""
