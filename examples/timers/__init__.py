"""`python -m examples.timers`: seats that are held for a while, and are free again unless they are paid."""
