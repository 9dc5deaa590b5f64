"""`python -m examples.standalone.dead_letters [--again]`: shows dead letters, or sends them again."""

import asyncio
import sys

from sqlalchemy import delete, insert, select

from examples.standalone.database import dlq_table, engine, outbox_table, sessions

# The columns of the message, without those of its failure: it starts from the beginning.
COLUMNS = ["queue", "entity_key", "payload", "headers"]


async def show() -> None:
    """Print what failed, and why."""
    async with sessions() as session:
        for row in await session.execute(select(dlq_table).order_by(dlq_table.c.id)):
            print(f"{row.queue} {row.original_id} after {row.attempts_count} attempts: {row.failure_reason}")
            print(f"  {row.payload.decode()}")
            print(f"  {(row.last_exception or '').partition(chr(10))[0]}")


async def send_again() -> None:
    """Move all rows back, in one statement."""
    moved = delete(dlq_table).returning(*dlq_table.c).cte("moved")
    source = select(*(moved.c[name] for name in COLUMNS))
    async with sessions() as session, session.begin():
        again = insert(outbox_table).from_select(COLUMNS, source).returning(outbox_table.c.id)
        print(f"{len((await session.execute(again)).all())} to be delivered again")


async def main(*, again: bool) -> None:
    await (send_again() if again else show())
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(again="--again" in sys.argv))
