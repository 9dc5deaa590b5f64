"""Hand claimed rows to workers, which call the handler."""
