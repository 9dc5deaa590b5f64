"""`python -m examples.inbox`: payments that are announced more than once, and booked once."""
