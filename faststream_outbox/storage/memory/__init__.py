"""The store in memory, for the tests of applications."""
