"""`python -m examples.parking`: accounts whose entries make sense in their order only, and a clerk who mends one."""
