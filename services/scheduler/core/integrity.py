"""Checks a lane's accounts against each other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.scheduler.core.queue import WaitingQueue
    from services.scheduler.core.replica import Replica
    from services.scheduler.core.sequence import Accepted, Sequence


def replica_violations(replica: Replica) -> list[str]:
    """Return what is wrong with one replica's pages, slots and rows in flight."""
    holders = [0] * replica.pool.count
    for sequence in replica.running:
        for page in sequence.pages:
            holders[page] += 1
    found = replica.pool.violations(holders)
    found += replica.cache.violations({sequence.generation for sequence in replica.running})
    slots = [sequence.slot for sequence in replica.running]
    if len(set(slots)) != len(slots) or len(slots) + replica.free_slots != replica.slots:
        found.append("slots are shared or lost")
    if any(one.protection > two.protection for one, two in pairwise(replica.running)):
        found.append("running sequences are out of order")
    for sequence in replica.running:
        found += _sequence_violations(replica, sequence)
    return [f"{replica.replica_id}: {text}" for text in found]


def _sequence_violations(replica: Replica, sequence: Sequence) -> list[str]:
    found = []
    samples = sum(
        row[3] for flight in replica.flights for row in flight.rows if row[1] == sequence.generation
    )
    name = f"sequence {sequence.request_id}/{sequence.choice}"
    if sequence.known != len(sequence.tokens) + samples:
        found.append(f"{name} knows {sequence.known} tokens, not {len(sequence.tokens)} + {samples}")
    if not sequence.computed < sequence.known <= sequence.limit:
        found.append(f"{name} computed {sequence.computed} of {sequence.known}, limit {sequence.limit}")
    if len(set(sequence.pages)) != len(sequence.pages):
        found.append(f"{name} holds a page twice")
    room = len(sequence.pages) * replica.capacity.page_size
    if sequence.page_room != room or sequence.computed > room:
        found.append(f"{name} computed {sequence.computed} positions in pages for {room}")
    return found


def lane_violations(replicas: Iterable[Replica], queue: WaitingQueue, live: Iterable[Accepted]) -> list[str]:
    """Return everything that is wrong in a lane; every open choice waits or runs, once."""
    replicas = list(replicas)
    found = queue.violations()
    for replica in replicas:
        found += replica_violations(replica)
    placed = [*queue, *(sequence for replica in replicas for sequence in replica.running)]
    open_choices = {seq for one in live for seq in one.choices if seq.finish_reason is None}
    if len(placed) != len(set(placed)) or set(placed) != open_choices:
        found.append("an open choice neither waits nor runs, or does so twice")
    found += [
        f"request {one.request.request_id} counts {one.open_choices} open choices"
        for one in live
        if one.open_choices != sum(seq.finish_reason is None for seq in one.choices) or not one.open_choices
    ]
    return found
