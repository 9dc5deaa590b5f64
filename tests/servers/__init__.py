"""Servers of other makers, on loopback, which a test may take away and bring back with their data."""
