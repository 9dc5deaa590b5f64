"""Two programs that share a table: a shop that places orders, and a service that packs them.

From the root of the checkout:

    export DATABASE_URL=postgresql+asyncpg://localhost/app
    python -m examples.standalone.shop tea glass dragon    # publish
    faststream run examples.standalone.service:app         # deliver, until Ctrl-C
    python -m examples.standalone.dead_letters             # show dead letters
    python -m examples.standalone.dead_letters --again     # send them again
"""
