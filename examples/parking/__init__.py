"""`python -m examples.parking`: accounts whose entries must be booked in order, and a clerk who corrects one."""
