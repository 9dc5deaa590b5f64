"""Ours beside its peers, each in a process and an environment of its own, in one run.

`programs/` holds what runs there, `contestants.py` who takes part and how they are set up, the other modules a question
each.
"""
