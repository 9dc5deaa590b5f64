"""The tables, and the check of live tables against them."""
