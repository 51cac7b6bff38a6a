"""check_integrity finds each kind of broken account."""

from collections.abc import Callable

import pytest

from services.scheduler.core.replica import Replica
from tests.unit.scheduler_core.harness import Harness


def leak_a_page(replica: Replica) -> None:
    replica.pool.take()


def lose_a_free_page(replica: Replica) -> None:
    replica.pool._unlink(replica.pool._next[replica.pool.count])


def miscount_free_pages(replica: Replica) -> None:
    replica.pool.available -= 1


def own_a_page_twice(replica: Replica) -> None:
    first, second = replica.running
    second.pages[0] = first.pages[0]


def lose_a_slot(replica: Replica) -> None:
    replica.running[0].slot = replica.running[1].slot


def miscount_progress(replica: Replica) -> None:
    replica.running[0].known += 1


def forget_a_sequence(replica: Replica) -> None:
    replica.running.pop()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (leak_a_page, "0 sequences hold it"),
        (lose_a_free_page, "the free list is not the pages without a holder"),
        (miscount_free_pages, "free + cached + owned pages are not the total"),
        (own_a_page_twice, "has 1 holders, 2 sequences hold it"),
        (lose_a_slot, "slots are shared or lost"),
        (miscount_progress, "knows"),
        (forget_a_sequence, "neither waits nor runs"),
    ],
)
def test_damage_is_reported(damage: Callable[[Replica], None], complaint: str):
    harness = Harness()
    harness.submit(6, 8)
    harness.submit(6, 8)
    harness.step()
    assert harness.lane.check_integrity() == []
    damage(harness.lane._replicas["w0"])
    assert any(complaint in violation for violation in harness.lane.check_integrity())
