import asyncio, os, sys, time, random, signal, subprocess, json
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import create_async_engine, async_sessionmaker
from faststream_outbox import OutboxBroker, make_outbox_table, make_dlq_table, ConstantRetry
DSN=os.environ["OUTBOX_TEST_DSN"].replace("postgresql://","postgresql+asyncpg://")
md=MetaData(); T=make_outbox_table(md); D=make_dlq_table(md)
KEYS=40
def mono(): return time.clock_gettime(time.CLOCK_MONOTONIC)
async def worker(n, seed):
    rnd=random.Random(seed)
    engine=create_async_engine(DSN, pool_size=10); log=create_async_engine(DSN, pool_size=4, isolation_level="AUTOCOMMIT")
    broker=OutboxBroker(engine, outbox_table=T, dlq_table=D, logger=None, graceful_timeout=3)
    batch = n%3==2
    async def body_of(b):
        async with log.connect() as c:
            await c.execute(text("INSERT INTO history VALUES ('start',:k,:s,:w,:t)"),{"k":b["k"],"s":b["s"],"w":n*1000000+os.getpid(),"t":mono()})
        await asyncio.sleep(rnd.random()*0.004)
        if rnd.random()<0.02:
            async with log.connect() as c:
                await c.execute(text("INSERT INTO history VALUES ('fail',:k,:s,:w,:t)"),{"k":b["k"],"s":b["s"],"w":n*1000000+os.getpid(),"t":mono()})
            raise ValueError
        if rnd.random()<0.0: time.sleep(1.6)   # past the lease
        async with log.connect() as c:
            await c.execute(text("INSERT INTO history VALUES ('end',:k,:s,:w,:t)"),{"k":b["k"],"s":b["s"],"w":n*1000000+os.getpid(),"t":mono()})
    opts=dict(max_workers=4, lease_ttl_seconds=1.0, retry_strategy=ConstantRetry(delay_seconds=0.05), min_fetch_interval=0.1, max_fetch_interval=0.5)
    if batch:
        @broker.subscriber("q", batch=True, max_records=10, **opts)
        async def handle(bs: list[dict]):
            for b in bs: await body_of(b)
    else:
        @broker.subscriber("q", **opts)
        async def handle(b: dict): await body_of(b)
    await broker.start()
    stop=asyncio.Event(); asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait(); await broker.stop(); await engine.dispose(); await log.dispose()
async def producer(n, seed, seconds):
    rnd=random.Random(seed); engine=create_async_engine(DSN); S=async_sessionmaker(engine)
    broker=OutboxBroker(engine, outbox_table=T)
    end=time.time()+seconds
    while time.time()<end:
        async with S() as s, s.begin():
            k=f"k{rnd.randrange(KEYS)}"
            # the counter row is locked after the publish lock, so draw under the same transaction
            for _ in range(rnd.randrange(1,4)):
                seq=(await s.execute(text("UPDATE counters SET n=n+1 WHERE k=:k RETURNING n"),{"k":k})).scalar_one()
                await broker.publish({"k":k,"s":seq}, queue="q", session=s, key=k)
            await asyncio.sleep(rnd.random()*0.003)
            if rnd.random()<0.05: await s.rollback()
    await engine.dispose()
async def setup():
    e=create_async_engine(DSN)
    async with e.begin() as c:
        await c.run_sync(md.create_all)
        await c.execute(text("CREATE TABLE history (what text, k text, s int, w bigint, t float8)"))
        await c.execute(text("CREATE TABLE counters (k text primary key, n int)"))
        await c.execute(text("INSERT INTO counters SELECT 'k'||n,0 FROM generate_series(0,99) n"))
    await e.dispose()
async def left():
    e=create_async_engine(DSN)
    async with e.connect() as c: r=(await c.execute(text("SELECT count(*) FROM outbox"))).scalar_one()
    await e.dispose(); return r
async def check():
    e=create_async_engine(DSN)
    async with e.connect() as c: rows=(await c.execute(text("SELECT what,k,s,w,t FROM history ORDER BY t"))).all(); dead=(await c.execute(text("SELECT count(*) FROM outbox_dlq"))).scalar_one(); tot=(await c.execute(text("SELECT sum(n) FROM counters"))).scalar_one()
    await e.dispose()
    bad=[]; done={}; open_={}; first={}
    for what,k,s,w,t in rows:
        if what=='start':
            for (w2,s2),t2 in list(open_.get(k,{}).items()):
                if w2!=w and w2 not in KILLED_BEFORE(w2,t):
                    bad.append(("overlap",k,s,s2,w,w2,t,t2))
            lower=[x for x in range(1,s) if x not in done.get(k,set())]
            if lower: bad.append(("order",k,s,lower[:3],t))
            open_.setdefault(k,{})[(w,s)]=t
        else:
            open_.get(k,{}).pop((w,s),None)
            if what=='end': done.setdefault(k,set()).add(s)
    missing=[(k,n) for k,st in done.items() for n in range(1,max(st)+1) if n not in st]
    print(json.dumps({"events":len(rows),"total":tot,"done":sum(map(len,done.values())),"dead":dead,"bad":len(bad),"missing":len(missing)}))
    from collections import Counter
    print(Counter(b[0] for b in bad)); print(bad[:5]); print(missing[:5])
KILL={}
def KILLED_BEFORE(w,t):
    return {w} if (w in KILL and KILL[w]<t) or True and w in KILL and KILL[w]<t else set()
def main():
    if sys.argv[1]=="worker": asyncio.run(worker(int(sys.argv[2]), int(sys.argv[3]))); return
    if sys.argv[1]=="producer": asyncio.run(producer(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))); return
    seconds=float(sys.argv[1]); seed=int(sys.argv[2]); rnd=random.Random(seed)
    asyncio.run(setup())
    P=lambda *a: subprocess.Popen([sys.executable,__file__,*map(str,a)])
    prods=[P("producer",i,seed+i,seconds) for i in range(2)]
    ws={i:P("worker",i,seed*10+i) for i in range(3)}
    end=time.time()+seconds; kills=0
    while time.time()<end:
        time.sleep(rnd.uniform(1.0,2.5))
        i=rnd.choice(list(ws)); p=ws[i]
        p.kill(); p.wait(); KILL[i*1000000+p.pid]=mono(); kills+=1
        ws[i]=P("worker",i,seed*10+i+kills*100)
    for p in prods: p.wait()
    deadline=time.time()+90
    while time.time()<deadline and asyncio.run(left()): time.sleep(0.5)
    print("left", asyncio.run(left()), "kills", kills)
    for p in ws.values(): p.terminate()
    for p in ws.values(): p.wait()
    asyncio.run(check())
main()
