"""The check at the end: what the shop, the database and the warehouse each know must be one story."""

from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from examples.demo.delivery import MAX_ATTEMPTS
from examples.demo.shop import Order, Shop, dlq_table, order_in, outbox_table
from examples.demo.warehouse import Warehouse


@dataclass(frozen=True)
class Evidence:
    """What each witness says, by order number."""

    confirmed: AbstractSet[int]  # the shop, to its customers
    cancelled: AbstractSet[int]
    committed: AbstractSet[int]  # the table `orders`: the truth
    packed: Counter[int]  # the warehouse, which counts
    failed: Counter[int]
    dead: Counter[int]  # the dead-letter table
    left: Counter[int]  # the outbox


async def collect_evidence(session: AsyncSession, shop: Shop, warehouse: Warehouse) -> Evidence:
    """Ask everybody, the database first of all."""
    committed = await session.scalars(select(Order.number))
    dead = await session.scalars(select(dlq_table.c.payload))
    left = await session.scalars(select(outbox_table.c.payload))
    return Evidence(
        confirmed=shop.confirmed,
        cancelled=shop.cancelled,
        committed=set(committed),
        packed=warehouse.packed,
        failed=warehouse.failed,
        dead=Counter(map(order_in, dead)),
        left=Counter(map(order_in, left)),
    )


def find_violations(evidence: Evidence) -> dict[str, list[int]]:
    """Tell, for each thing that must not happen, to which orders it happened."""
    committed, packed, dead = evidence.committed, set(evidence.packed), set(evidence.dead)
    ends = evidence.packed + evidence.dead
    seen = packed | dead | set(evidence.failed)
    # A dead letter that did not get all its attempts is no excuse for not delivering it.
    given_up = {order for order in dead if evidence.failed[order] >= MAX_ATTEMPTS}
    violations = {
        "Lost": committed - packed - given_up - set(evidence.left),
        "Delivered more than once": {order for order, count in ends.items() if count > 1},
        "Delivered although rolled back": seen - committed,
        "Left in the outbox": set(evidence.left),
        "Customer told the wrong outcome": evidence.confirmed ^ committed,
    }
    return {name: sorted(orders) for name, orders in violations.items()}
