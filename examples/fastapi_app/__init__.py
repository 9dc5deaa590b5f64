"""A small FastAPI service on an outbox: an order and its message are written together, a handler confirms the order."""
