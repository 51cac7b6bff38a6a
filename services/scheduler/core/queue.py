"""Who goes in next: classes by weight with aging, tenants by tokens, then first come first served."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from typing import TYPE_CHECKING

from services.scheduler.core.messages import Priority
from services.scheduler.core.sequence import PROTECTION, Sequence, Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from services.scheduler.core.limits import LaneLimits

MOST_IDLE_ACCOUNTS = 1024


class Account:
    """What one tenant was served within a class, in tokens."""

    __slots__ = ("klass", "served", "waiting")

    def __init__(self, klass: ClassQueue, served: float) -> None:
        self.klass = klass
        self.served = served
        self.waiting: OrderedDict[Sequence, None] = OrderedDict()


class ClassQueue:
    """One priority class: start-time fair queuing over its tenants."""

    __slots__ = ("accounts", "floor", "served", "weight", "work")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0  # tokens by weight
        self.floor = 0.0  # what a tenant present all the time has had by now
        self.accounts: dict[str, Account] = {}
        self.work = Work()

    def account(self, tenant_id: str) -> Account:
        """Return a tenant's account; one that was away has saved up nothing."""
        account = self.accounts.get(tenant_id)
        if account is None:
            account = self.accounts[tenant_id] = Account(self, self.floor)
        elif not account.waiting:
            account.served = max(account.served, self.floor)
        return account

    def advance(self, tokens: float) -> None:
        """Move the floor by one tenant's share of what was just served."""
        self.floor += tokens / sum(bool(one.waiting) for one in self.accounts.values())

    def head(self, skipped: set[Sequence]) -> Sequence | None:
        """Return the next sequence of the least served tenant that has one outside `skipped`."""
        best: Sequence | None = None
        least = float("inf")
        for account in self.accounts.values():
            if account.waiting and account.served < least:
                first = next((seq for seq in account.waiting if seq not in skipped), None)
                if first is not None:
                    best, least = first, account.served
        return best

    def prune(self) -> None:
        """Forget what tenants owe that wait for nothing, when there are too many of them."""
        idle = [name for name, one in self.accounts.items() if not one.waiting]
        if len(idle) > MOST_IDLE_ACCOUNTS:
            for name in idle:
                del self.accounts[name]


class WaitingQueue:
    """Every waiting sequence of a lane, and the work they add up to."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._classes = _classes(limits)
        self._returned: list[Sequence] = []  # preempted or bereaved: before all others
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._returned
        for klass in self._classes.values():
            for account in klass.accounts.values():
                yield from account.waiting

    def push(self, sequence: Sequence, now: float) -> None:
        """Queue a new sequence behind its tenant's others."""
        klass = self._class_of(sequence)
        if not klass.work.sequences:
            busy = [one.served for one in self._classes.values() if one.work.sequences]
            klass.served = max(klass.served, min(busy, default=0.0))
        sequence.account = klass.account(sequence.accepted.request.tenant_id)
        sequence.account.waiting[sequence] = None
        self._enter(sequence, now)

    def push_front(self, sequence: Sequence, now: float) -> None:
        """Put back a sequence that was already served once."""
        insort(self._returned, sequence, key=PROTECTION)
        self._enter(sequence, now)

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out, whatever for."""
        account = sequence.account
        if account is not None and sequence in account.waiting:
            del account.waiting[sequence]
        else:
            self._returned.remove(sequence)
        klass = self._class_of(sequence)
        klass.work.add(sequence.work, -1)
        if klass.work.sequences == 0:
            klass.work = Work()
            klass.accounts.clear()  # nobody competes: debts are forgotten
            klass.floor = 0.0
        self._count -= 1
        if not self._count:
            self._classes = _classes(self._limits)

    def take(self, sequence: Sequence, prefill_tokens: float) -> None:
        """Take a sequence out to be served; a new one is charged to its tenant and class in advance."""
        account = sequence.account
        if account is not None and sequence in account.waiting:
            sequence.charged = sequence.work.output_tokens
            tokens = prefill_tokens + sequence.charged
            self._charge(account, tokens)
            account.klass.advance(tokens)
            account.klass.prune()
        self.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Correct the advance charge of an ended sequence to what it produced."""
        if sequence.account is not None and sequence.charged:
            self._charge(sequence.account, sequence.output_len - sequence.charged)
            sequence.charged = 0.0

    def peek(self, now: float, skipped: set[Sequence]) -> Sequence | None:
        """Return who should go in next, leaving out `skipped`."""
        for sequence in self._returned:
            if sequence not in skipped:
                return sequence
        best: Sequence | None = None
        least = float("inf")
        for klass in self._classes.values():
            head = klass.head(skipped) if klass.work.sequences else None
            if head is not None and (rank := klass.served - self._credit(head, now)) < least:
                best, least = head, rank
        return best

    def fellows(self, sequence: Sequence) -> Iterable[Sequence]:
        """Return what waits beside a sequence: its tenant's of its class, or all that was put back."""
        account = sequence.account
        return account.waiting if account is not None and sequence in account.waiting else self._returned

    def ahead(self, priority: Priority) -> Work:
        """Return the waiting work a newcomer of a class would have before it.

        Its own and better classes count in full, lesser ones by the share their weight gives them.
        """
        total = Work()
        for rank, klass in self._classes.items():
            if rank <= priority:
                total.add(klass.work)
        own = self._classes[priority].weight
        tokens = total.prefill_tokens + total.output_tokens
        for rank, klass in self._classes.items():
            theirs = klass.work.prefill_tokens + klass.work.output_tokens
            if rank > priority and theirs:
                total.add(klass.work, min(1.0, tokens * klass.weight / own / theirs))
        return total

    def total(self) -> Work:
        """Return all waiting work."""
        return self.ahead(Priority.BATCH)

    def violations(self) -> list[str]:
        """Check the sums against the sequences."""
        waiting = list(self)
        found = []
        if len(waiting) != self._count or len(set(waiting)) != len(waiting):
            found.append("the queue's length is wrong")
        pages = sum(sequence.work.pages for sequence in waiting)
        if abs(pages - self.total().pages) > 1e-6 * max(1.0, pages):
            found.append("the queue's work is not the sum of its sequences'")
        return found

    def _class_of(self, sequence: Sequence) -> ClassQueue:
        return self._classes[sequence.accepted.request.priority]

    def _enter(self, sequence: Sequence, now: float) -> None:
        sequence.queued_at = now
        sequence.wait_until = None
        self._class_of(sequence).work.add(sequence.work)
        self._count += 1

    def _charge(self, account: Account, tokens: float) -> None:
        account.served += tokens
        account.klass.served += tokens / account.klass.weight

    def _credit(self, sequence: Sequence, now: float) -> float:
        limits = self._limits
        return min((now - sequence.queued_at) * limits.aging_tokens_per_s, limits.aging_cap_tokens)


def _classes(limits: LaneLimits) -> dict[Priority, ClassQueue]:
    return dict(zip(Priority, map(ClassQueue, limits.weights), strict=True))
