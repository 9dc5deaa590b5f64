"""The statements of operators' acts on many rows."""
