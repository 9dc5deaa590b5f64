"""The same small shop with SQLModel, Starlette, Litestar, Flask and in a script, which need no code of their own here.

Each file is one program: an order and its message, in one transaction. From the root of the checkout:

    python -m examples.frameworks    # all of them, on a Postgres of their own
"""
