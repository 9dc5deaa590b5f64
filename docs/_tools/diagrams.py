"""Writes the diagrams of the documentation to docs/images: `python docs/_tools/diagrams.py`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
from drawing import Drawing, Kind, Sequence

IMAGES: Final = Path(__file__).parents[1] / "images"


def life() -> Drawing:
    """Draw publish, commit, claim, dispatch and settle."""
    picture = Sequence(
        "The life of a message",
        "Your code writes its data and the message in one transaction. After the commit the subscriber is woken, "
        "claims the row under a lease, calls your handler, and deletes the row.",
    )
    code, table, subscriber, handler = "your code", "Postgres", "subscriber", "your handler"
    picture.lanes((code, 62, "yours"), (table, 184, "table"), (subscriber, 302, "step"), (handler, 418, "yours"))
    top = picture.y
    picture.y += 12
    picture.message(code, table, "BEGIN")
    picture.message(code, table, "INSERT data")
    picture.message(code, table, "publish: INSERT")
    picture.message(code, table, "COMMIT")
    picture.phase(top, "yours", "publish: one transaction")
    picture.message(table, subscriber, "NOTIFY", dashed=True)
    picture.y += 12
    top = picture.y
    picture.y += 12
    picture.message(subscriber, table, "lease due rows")
    picture.message(table, subscriber, "rows, one token")
    picture.phase(top, "step", "claim")
    top = picture.y
    picture.y += 12
    picture.message(subscriber, handler, "call")
    picture.message(handler, subscriber, "return")
    picture.phase(top, "yours", "dispatch")
    top = picture.y
    picture.y += 12
    picture.message(subscriber, table, "DELETE, if token")
    picture.phase(top, "table", "settle")
    picture.end()
    return picture


def leases() -> Drawing:
    """Draw a process that stalls, loses its lease, and cannot settle any more."""
    picture = Sequence(
        "Leases and fencing",
        "Process A claims a row under token a1 and stalls. Its lease runs out. Process B claims the row under token "
        "b7, handles it and deletes it. When process A comes back, its settle with token a1 matches no row.",
    )
    a, row, b = "process A", "the row", "process B"
    picture.lanes((a, 80, "yours"), (row, 240, "table"), (b, 400, "step"))
    top = picture.y
    picture.y += 12
    picture.message(a, row, "claim: token a1")
    picture.message(a, row, "renew the lease")
    picture.note(a, "stalls: swap,", "a long pause", kind="bad")
    picture.phase(top, "yours", "A holds the lease")
    picture.note(row, "the lease runs out", kind="bad", width=148)
    picture.y += 10
    top = picture.y
    picture.y += 12
    picture.message(b, row, "claim: token b7")
    picture.note(b, "handles it", kind="step")
    picture.message(b, row, "settle with b7")
    picture.note(row, "deleted", kind="table")
    picture.phase(top, "step", "B holds the lease")
    picture.note(a, "comes back", kind="yours")
    picture.message(a, row, "settle with a1", failed=True)
    picture.note(row, "no row has token a1:", "nothing is changed", width=170)
    picture.y += 10
    picture.end()
    return picture


def keys() -> Drawing:
    """Draw the rows of a queue by key, with one key that is blocked."""
    picture = Drawing(
        "Ordered keys",
        "The rows of a queue by key. Process A handles rows 1, 4 and 6 of key anna in their order. The head of key ben "
        "failed and waits for its retry, and row 5 waits behind it. Process B handles the rows of key cleo. Rows "
        "without a key go to any process.",
    )
    lanes: list[tuple[str, list[str], Kind, tuple[str, str]]] = [
        ("key anna", ["1", "4", "6"], "step", ("process A has 1, 4, 6:", "one after the other")),
        ("key ben", ["2", "5"], "bad", ("2 failed, and waits;", "5 waits behind it")),
        ("key cleo", ["3", "7"], "table", ("process B has 3, 7:", "beside process A")),
        ("no key", ["8", "9"], "plain", ("any process,", "in any order")),
    ]
    picture.text(16, 30, "key", "s b", "start")
    picture.text(104, 30, "rows: first on the left", "s b", "start")
    picture.y = 44
    for name, rows, kind, words in lanes:
        picture.box(8, picture.y, 464, 62, "note")
        picture.text(18, picture.y + 36, name, "s b", "start")
        for number, row in enumerate(rows):
            waits = kind == "bad" and number > 0
            x = 104 + 60 * number
            picture.box(x, picture.y + 12, 46, 38, "plain" if waits else kind, row)
            if number and kind != "plain":
                picture.arrow(x, picture.y + 31, x - 12, picture.y + 31)
        picture.text(300, picture.y + 27, words[0], "s", "start")
        picture.text(300, picture.y + 45, words[1], "s", "start")
        picture.y += 70
    picture.text(16, picture.y + 16, "A head that fails blocks its own key, and no other.", "s", "start")
    picture.y += 32
    return picture


def outage() -> Drawing:
    """Draw a relay while the broker that it sends to is down."""
    picture = Sequence(
        "A relay with an outage",
        "The relay sends row 1 to Kafka and deletes it when it is confirmed. Then Kafka is down: the relay claims "
        "nothing, your service goes on committing, and rows wait in the outbox. When Kafka answers again, the relay "
        "sends the rows in their order and deletes them.",
    )
    service, table, relay, kafka = "your service", "outbox", "relay", "Kafka"
    picture.lanes((service, 62, "yours"), (table, 184, "table"), (relay, 302, "step"), (kafka, 418, "plain"))
    picture.message(service, table, "commit row 1")
    picture.message(relay, table, "claim")
    picture.message(relay, kafka, "send 1")
    picture.message(kafka, relay, "confirmed")
    picture.message(relay, table, "delete 1")
    picture.y += 14
    top = picture.y
    picture.y += 12
    picture.message(service, table, "commit row 2")
    picture.message(relay, kafka, "send 2", failed=True)
    picture.note(relay, "pauses: claims", "nothing, keeps", "row 2")
    picture.message(service, table, "commit 3, 4, 5")
    picture.note(table, "rows wait", kind="table")
    picture.message(relay, kafka, "are you there?", dashed=True)
    picture.phase(top, "bad", "outage: no attempt is counted")
    picture.message(kafka, relay, "answers")
    picture.message(relay, kafka, "send 2, 3, 4, 5")
    picture.message(kafka, relay, "confirmed")
    picture.message(relay, table, "delete 2 to 5")
    picture.y += 18
    picture.end()
    return picture


def overview() -> Drawing:
    """Draw what goes wrong without an outbox, and what an outbox does."""
    picture = Drawing(
        "Without an outbox, and with one",
        "Without an outbox a crash between the commit and the send loses the message. With an outbox the message is "
        "committed together with the data, and delivered to handlers and to Kafka, RabbitMQ, NATS or Redis.",
    )
    picture.box(20, 44, 124, 84, "yours", "your service")
    picture.box(316, 44, 144, 38, "table", "1. commit: done", look="s")
    picture.box(316, 92, 144, 38, "bad", "2. send: crashed", look="s")
    picture.arrow(144, 63, 314, 63)
    picture.arrow(144, 111, 292, 111, failed=True)
    picture.text(224, 54, "order 7", "s")
    picture.text(224, 102, "“order 7”", "s")
    picture.text(20, 154, "The order is there, and no other service learns of it.", "s", "start")
    picture.band(10, 168, "note", "without an outbox")
    picture.box(20, 214, 124, 96, "yours", "your service", look="t")
    picture.box(216, 214, 244, 96, "table")
    picture.text(228, 234, "one transaction in Postgres", "s b", "start")
    picture.box(228, 246, 104, 50, "note", "orders", "order 7")
    picture.box(344, 246, 104, 50, "note", "outbox", "“order 7”")
    picture.arrow(144, 262, 214, 262)
    picture.text(178, 253, "commit", "s")
    picture.arrow(396, 310, 396, 350)
    picture.text(388, 335, "claim", "s", "end")
    picture.box(316, 352, 144, 44, "step", "subscriber, relay", look="s")
    picture.arrow(316, 374, 262, 374)
    picture.text(289, 365, "deliver", "s")
    picture.box(20, 338, 240, 34, "yours", "your handlers", look="s")
    picture.box(20, 380, 240, 34, "plain", "Kafka, RabbitMQ, NATS, Redis", look="s")
    picture.text(20, 442, "After a crash it is delivered by another process.", "s", "start")
    picture.band(180, 456, "note", "with faststream-outbox")
    picture.y = 466
    return picture


PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "overview": overview,
    "life": life,
    "leases": leases,
    "keys": keys,
    "outage": outage,
}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
