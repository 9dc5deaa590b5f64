"""A message on its way into the table."""
