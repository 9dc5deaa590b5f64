"""A row on its way to a handler: claimed, dispatched, settled."""
