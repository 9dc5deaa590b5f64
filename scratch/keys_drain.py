import asyncio, time, os, sys
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine
from faststream_outbox import OutboxBroker, make_outbox_table
N=10000
async def main():
    engine=create_async_engine(os.environ["OUTBOX_TEST_DSN"].replace("postgresql://","postgresql+asyncpg://"))
    md=MetaData(); t=make_outbox_table(md)
    async with engine.begin() as c: await c.run_sync(md.create_all)
    broker=OutboxBroker(engine, outbox_table=t, logger=None)
    done=0; ev=asyncio.Event()
    @broker.subscriber("q")
    async def handle(item: dict):
        nonlocal done
        done+=1
        if done>=N: ev.set()
    await broker.start(); sub=broker.subscribers[0]
    for keyed in (False, True, False, True):
        if keyed and 'nokeys' in sys.argv: continue
        done=0; ev.clear()
        async with engine.begin() as c:
            key="'k'||(n/5)" if keyed else "NULL"
            await c.execute(text("INSERT INTO outbox(queue,entity_key,payload,headers) SELECT 'q', %s, convert_to('{\"n\": \"'||repeat('x',240)||'\"}','utf8'), '{\"content-type\": \"application/json\"}' FROM generate_series(1,%d) n"%(key,N)))
        b=time.perf_counter(); cpu=time.process_time()
        sub._pipeline.wake(); await ev.wait()
        w=time.perf_counter()-b; print("keyed" if keyed else "plain", round(N/w), "msg/s", round((time.process_time()-cpu)/N*1e6,1), "us")
    await broker.stop(); await engine.dispose()
asyncio.run(main())
