"""`python -m pytest examples/testing`: a small service, and its tests with and without Postgres."""
