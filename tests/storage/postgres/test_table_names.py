"""Any name that Postgres takes will do, quoted, schema-qualified, with the characters that drivers trip over."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage import Ack, Dead, NewRow, Retry, Settlement
from tests.backends import PostgresBackend


@pytest.mark.parametrize(
    ("schema", "table_name"),
    [
        ("app", "outbox"),
        ("My Schema", "Out Box"),
        (None, "100% $1 :x"),
        (None, 'quo"ted'),
        (None, "select"),
        ("ü", "ö"),
    ],
)
async def test_the_whole_life_of_rows(engine: AsyncEngine, schema: str | None, table_name: str) -> None:
    backend = PostgresBackend(engine, schema=schema, table_name=table_name)
    await backend.create()
    await backend.insert(NewRow("q", b"1"), NewRow("q", b"2", key="k"), NewRow("q", b"3", timer_id="t"))
    async with backend.transaction() as session:
        await backend.store.insert_many(session, [NewRow("q", b"4"), NewRow("q", b"5", key="k")])
        assert await backend.store.cancel_timer(session, queue="q", timer_id="t")
    one, four = (await backend.claim("q")).rows
    async with backend.store.connect() as lane:
        assert len(await lane.renew([one.lease, four.lease], lease_seconds=5)) == 2
        assert (await lane.settle([Settlement(one.lease, Retry(0, 1))])).held == {one.lease}
        [again] = (await backend.claim("q")).rows
        settled = await lane.settle([Settlement(again.lease, Dead("rejected")), Settlement(four.lease, Ack())])
        assert len(settled.held) == 2
        [stats] = await lane.stats()
        assert (stats.ready, stats.dead) == (2, 1)
    assert [row.payload for row in await backend.rows()] == [b"2", b"5"]
