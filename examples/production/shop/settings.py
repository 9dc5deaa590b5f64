"""What differs between deployments, read from the environment."""

import os

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

#: Seconds that running handlers get to finish after SIGTERM. The grace period of the deployment is longer.
GRACEFUL_TIMEOUT = 15.0


def make_engine(pool_size: int) -> AsyncEngine:
    """Make an engine on the database of `DATABASE_URL`; connections that died in the pool are replaced."""
    return create_async_engine(os.environ["DATABASE_URL"], pool_size=pool_size, max_overflow=0, pool_pre_ping=True)
