"""Processes of an older version beside those of this one, on the same tables."""
