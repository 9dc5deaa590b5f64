"""Processes of `examples/bank` killed and stopped in the middle of their transactions, and the tables checked after."""
