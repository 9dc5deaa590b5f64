"""What a node knows of itself and of others, by looks at locks."""

import math
import os
from uuid import UUID, uuid4

import pytest

from faststream_outbox.storage import nodes
from faststream_outbox.storage.nodes import GRACE, LONGEST_GAP, NO_DEATHS, Look, Node, Watch, node_name, node_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of leases, which a test sets."""
    now = [1000.0]
    monkeypatch.setattr(nodes, "lease_now", lambda: now[0])
    return now


def locked_node(at: float) -> Node:
    node = Node()
    node.note_locked(sent=at, received=at)
    return node


def test_a_token_says_which_node_made_it(clock: list[float]) -> None:
    node = locked_node(clock[0])
    tokens = {node.make_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert node_of(token) == node.id
        assert (token.version, token.variant) == (8, UUID(int=0x8 << 60).variant)
        assert str(token).startswith(node.name)


def test_a_node_without_its_lock_makes_tokens_without_its_id(clock: list[float]) -> None:
    node = Node()
    assert node_of(node.make_token()) is None
    node.note_locked(sent=clock[0], received=clock[0])
    node.note_lost()
    assert node.make_token().version == 4


def test_a_node_that_has_not_seen_its_lock_for_long_makes_tokens_without_its_id(clock: list[float]) -> None:
    node = locked_node(clock[0])
    clock[0] += GRACE
    assert node_of(node.make_token()) is None


def test_nodes_have_different_ids_and_locks() -> None:
    made = [Node() for _ in range(1000)]
    assert len({node.id for node in made}) == len({node.lock for node in made}) == 1000
    assert all(0 < node.lock < 2**63 for node in made), "a bigint"


def test_a_process_that_was_forked_begins_as_another_node(clock: list[float]) -> None:
    """As the workers of a server that loads the application once, and then forks."""
    node = locked_node(clock[0])
    before, (receiving, sending) = node.id, os.pipe()
    if (child := os.fork()) == 0:
        node.begin()
        os.write(sending, f"{node.id} {node.make_token().version}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    forked, version = os.read(receiving, 100).decode().split()
    os.close(receiving)
    os.close(sending)
    node.begin()
    assert node.id == before
    assert int(forked) != before
    assert version == "4", "it does not have the lock of the other"


class TestWhetherOthersMayTakeTheRowsOfANode:
    def test_not_while_it_sees_its_lock(self) -> None:
        node = locked_node(0.0)
        token = UUID(str(node.name) + "-8000-8000-000000000000")
        for at in range(0, 100, 4):
            node.note_seen(at)
            assert node.vouches_for(token, -10.0, at + 4.0)

    def test_when_it_has_not_seen_its_lock_for_the_grace(self) -> None:
        node = locked_node(0.0)
        token = UUID(str(node.name) + "-8000-8000-000000000000")
        assert not node.vouches_for(token, 0.0, GRACE)

    def test_never_under_a_token_without_a_node(self) -> None:
        node = locked_node(0.0)
        assert node.vouches_for(uuid4(), 0.0, 100 * GRACE)

    def test_never_before_the_first_lock(self) -> None:
        assert Node().vouches_for(uuid4(), 0.0, 1e9)

    def test_a_lock_that_is_taken_again_in_time_counts_once_all_can_have_seen_it(self) -> None:
        node = locked_node(0.0)
        token = UUID(str(node.name) + "-8000-8000-000000000000")
        node.note_lost()
        node.note_locked(sent=3.0, received=3.1)
        node.note_seen(3.2)
        assert not node.vouches_for(token, 0.0, GRACE), "others may have looked before and after, and not between"
        node.note_seen(3.1 + LONGEST_GAP)
        assert node.vouches_for(token, 0.0, 3.1 + LONGEST_GAP + GRACE / 2), "what it had before it still has"

    def test_a_lock_that_is_taken_again_too_late_protects_only_what_is_claimed_later(self) -> None:
        node = locked_node(0.0)
        token = UUID(str(node.name) + "-8000-8000-000000000000")
        node.note_lost()
        node.note_locked(sent=6.0, received=6.1)
        node.note_seen(7.0)
        assert not node.vouches_for(token, 5.9, 7.1)
        assert node.vouches_for(token, 6.2, 7.1)


def look(at: float, *names: str) -> Look:
    return Look(frozenset(names), database_time=1e6 + at, sent=at, received=at + 0.01)


def test_a_node_is_dead_when_its_lock_was_missing_in_all_looks_of_the_grace() -> None:
    watch = Watch()
    for at in range(10):
        watch.add(look(at, "me", "other"))
    assert list(watch.deaths.alive) == ["me", "other"]
    found = {at: watch.add(look(at, "me")) for at in range(10, 20)}
    assert [at for at, each in found.items() if each] == [16], (
        "first missed at 10, and the look at 15 is a bit too early"
    )
    assert list(watch.deaths.alive) == ["me"]


def test_the_look_that_finds_a_node_dead_comes_when_the_grace_is_over() -> None:
    watch = Watch()
    for at in range(10):
        watch.add(look(at, "me", "other"))
    assert watch.concludes_at == math.inf, "no lock is missing"
    for at in range(10, 13):
        watch.add(look(at, "me"))
    due = watch.concludes_at
    assert due == 10.01 + GRACE
    watch.add(look(14, "me"))
    assert watch.add(look(due + 0.001, "me"))
    assert watch.concludes_at == math.inf, "it has concluded"


def test_the_first_conclusion_comes_when_the_grace_is_over() -> None:
    watch = Watch()
    assert watch.concludes_at == math.inf, "there was no look"
    for at in range(4):
        watch.add(look(at, "me"))
    assert watch.concludes_at == 0.01 + GRACE
    assert watch.add(look(watch.concludes_at + 0.001, "me"))
    assert watch.concludes_at == math.inf


def test_what_was_claimed_after_the_first_look_of_the_grace_is_not_concluded_about() -> None:
    watch = Watch()
    for at in range(10):
        watch.add(look(at, "me"))
    assert watch.deaths.claimed_before == 1e6 + 3.0, "a node that started later may be alive, and not seen yet"


def test_nobody_is_dead_before_the_grace_has_passed_on_a_new_connection() -> None:
    watch = Watch()
    for at in range(10):
        watch.add(look(at, "me", "other"))
    watch.reset()
    assert watch.deaths is NO_DEATHS
    assert [watch.add(look(at, "me")) for at in range(20, 25)] == [False] * 5
    assert watch.deaths is NO_DEATHS
    assert NO_DEATHS.claimed_before == -math.inf


def test_looks_that_are_far_apart_prove_nothing() -> None:
    watch = Watch()
    for at in range(10):
        watch.add(look(at, "me", "other"))
    assert not watch.add(look(9 + LONGEST_GAP + 0.1, "me"))
    assert watch.deaths is NO_DEATHS, "a lock may have been taken and lost in between"


def test_a_node_that_was_missed_for_a_moment_is_alive() -> None:
    watch = Watch()
    for at in range(30):
        names = ("me", "other") if at % 4 == 0 else ("me",)
        watch.add(look(at, *names))
    assert list(watch.deaths.alive) == ["me", "other"]


def test_the_first_conclusion_is_about_those_that_died_before() -> None:
    watch = Watch()
    assert [watch.add(look(at, "me")) for at in range(8)] == [False] * 6 + [True, False]
    assert watch.found == 1


def test_a_name_is_the_beginning_of_a_token() -> None:
    assert node_name(0x0123456789AB) == "01234567-89ab"
