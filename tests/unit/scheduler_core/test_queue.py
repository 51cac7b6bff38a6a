"""WaitingQueue: classes by weight with aging, tenants by tokens, then first come first served."""

from services.scheduler.core.limits import LaneLimits
from services.scheduler.core.messages import Priority, Request
from services.scheduler.core.queue import MOST_IDLE_ACCOUNTS, WaitingQueue
from services.scheduler.core.sequence import Accepted, Sequence, work_of

NO_AGING = LaneLimits(aging_tokens_per_s=0.0)


class Desk:
    """Makes sequences and keeps them waiting."""

    def __init__(self, limits: LaneLimits = NO_AGING) -> None:
        self.queue = WaitingQueue(limits)
        self.order = 0

    def make(self, tenant: str, prompt: int, priority: Priority, output: int = 1) -> Sequence:
        self.order += 1
        request = Request(self.order, tenant, (1,) * prompt, output, priority=priority)
        sequence = Sequence(Accepted(request, self.order, 0.0), 0, 100_000)
        sequence.work = work_of(sequence, 16, 256, 1.0)
        return sequence

    def push(
        self, tenant: str = "t", prompt: int = 99, priority: Priority = Priority.STANDARD, now: float = 0.0
    ) -> Sequence:
        sequence = self.make(tenant, prompt, priority)
        self.queue.push(sequence, now)
        return sequence

    def serve(self, count: int, now: float = 0.0) -> list[Sequence]:
        served = []
        for _ in range(count):
            sequence = self.queue.peek(now, set())
            assert sequence is not None
            self.queue.take(sequence, sequence.work.prefill_tokens)
            served.append(sequence)
        assert self.queue.violations() == []
        return served


def tenants(served: list[Sequence]) -> list[str]:
    return [sequence.accepted.request.tenant_id for sequence in served]


def classes(served: list[Sequence]) -> list[Priority]:
    return [sequence.accepted.request.priority for sequence in served]


def test_one_tenant_is_served_first_come_first_served():
    desk = Desk()
    pushed = [desk.push() for _ in range(5)]
    assert desk.serve(5) == pushed
    assert desk.queue.peek(0.0, set()) is None


def test_tenants_take_turns_however_many_requests_one_has():
    desk = Desk()
    for _ in range(10):
        desk.push("greedy")
    for _ in range(3):
        desk.push("modest")
    assert tenants(desk.serve(6)).count("modest") == 3


def test_fairness_is_charged_in_tokens_so_that_long_prompts_do_not_win():
    desk = Desk()
    for _ in range(40):
        desk.push("long", prompt=999)
        desk.push("short", prompt=99)
    served = desk.serve(22)
    assert tenants(served).count("long") == 2
    assert tenants(served).count("short") == 20


def test_an_advance_charge_is_corrected_when_the_output_is_known():
    desk = Desk()
    first, second = desk.make("early", 10, Priority.STANDARD, 1000), desk.make("whole", 10, Priority.STANDARD)
    for sequence in (first, second):
        desk.queue.push(sequence, 0.0)
    waiting = [desk.push("early", 10), desk.push("whole", 200), desk.push("early", 10)]
    desk.serve(2)
    assert desk.queue.peek(0.0, set()) is waiting[1]
    desk.queue.settle(first)
    assert desk.queue.peek(0.0, set()) is waiting[0]


def test_a_tenant_that_was_away_has_saved_up_nothing():
    desk = Desk()
    for _ in range(10):
        desk.push("steady")
    desk.serve(6)
    for _ in range(4):
        desk.push("new")
    assert 1 <= tenants(desk.serve(4)).count("new") <= 3


def test_classes_are_served_by_weight_and_the_least_keeps_its_share():
    desk = Desk()
    for _ in range(200):
        for priority in Priority:
            desk.push(priority=priority)
    served = classes(desk.serve(130))
    assert abs(served.count(Priority.INTERACTIVE) - 80) <= 2
    assert abs(served.count(Priority.STANDARD) - 40) <= 2
    assert abs(served.count(Priority.BATCH) - 10) <= 2


def test_waiting_earns_credit_against_a_better_class_up_to_a_cap():
    limits = LaneLimits(aging_tokens_per_s=100.0, aging_cap_tokens=500.0)
    desk = Desk(limits)
    aged = [desk.push(priority=Priority.BATCH, now=0.0) for _ in range(50)]
    desk.serve(4)
    fresh = [desk.push(priority=Priority.INTERACTIVE, now=1000.0) for _ in range(50)]
    served = desk.serve(50, now=1000.0)
    assert served[0] in aged
    assert sum(one in fresh for one in served) >= 35


def test_what_was_served_once_goes_before_everything_new():
    desk = Desk()
    new = desk.push(priority=Priority.INTERACTIVE)
    late, early = desk.make("t", 5, Priority.BATCH), desk.make("t", 5, Priority.STANDARD)
    for sequence in (late, early):
        desk.queue.push_front(sequence, 0.0)
    assert desk.serve(3) == [early, late, new]


def test_skipped_sequences_are_passed_and_keep_their_place():
    desk = Desk()
    first, second = desk.push(), desk.push()
    assert desk.queue.peek(0.0, {first}) is second
    assert desk.queue.peek(0.0, {first, second}) is None
    assert desk.queue.peek(0.0, set()) is first


def test_removing_takes_the_work_along():
    desk = Desk()
    gone, stays = desk.push(prompt=1000), desk.push(prompt=10)
    desk.queue.remove(gone)
    assert list(desk.queue) == [stays]
    assert desk.queue.total().prefill_tokens == 10


def test_better_classes_see_little_of_the_work_of_lesser_ones():
    desk = Desk()
    for _ in range(80):
        desk.push(priority=Priority.BATCH)
    assert desk.queue.ahead(Priority.INTERACTIVE).sequences == 0
    for _ in range(8):
        desk.push(priority=Priority.INTERACTIVE)
    assert 8 < desk.queue.ahead(Priority.INTERACTIVE).sequences < 10
    assert desk.queue.ahead(Priority.BATCH).sequences == 88


def test_tenants_that_came_and_went_are_forgotten():
    desk = Desk()
    desk.push("stays")
    for number in range(3 * MOST_IDLE_ACCOUNTS):
        desk.push(f"tenant{number}")
        desk.serve(1)
    assert len(desk.queue._classes[Priority.STANDARD].accounts) <= MOST_IDLE_ACCOUNTS + 2


def test_an_endless_stream_of_new_tenants_starves_nobody():
    desk = Desk()
    waiting = [desk.push("old") for _ in range(3)]
    served = []
    for number in range(12):
        desk.push(f"tenant{number}")
        served += desk.serve(1)
    assert set(waiting) <= set(served)
