"""`python -m examples.console`: the console over a shop whose messages fail, wait and get stuck."""
