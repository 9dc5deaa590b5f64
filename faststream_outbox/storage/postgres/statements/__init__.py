"""Every SQL statement of the store."""
