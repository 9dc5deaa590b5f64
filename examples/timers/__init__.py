"""`python -m examples.timers`: hold seats for a limited time, and free them unless they are paid."""
