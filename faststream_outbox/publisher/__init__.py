"""Publishing: from a message to a row in the table."""
