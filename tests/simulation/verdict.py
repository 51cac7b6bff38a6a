"""The last word: what the ledger, the scheduler, the gateways and the users have when all is quiet."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from services.gateway.core.outcome import FinishReason
from services.usage.adapters import codec
from services.usage.core.ledger import AuditReason, Entry, Row
from tests.simulation.gateway import RESUBMIT_S, RESUME_LEASE_S
from tests.simulation.scheduler import LEASE_S
from tests.simulation.storm import RESTART_S

if TYPE_CHECKING:
    from tests.simulation.auditor import Grant
    from tests.simulation.cluster import Cluster
    from tests.simulation.user import User


# How long a scheduler may take to close what nobody owns any more, and an owner to tell the next scheduler.
SCHEDULER_S = LEASE_S + RESUME_LEASE_S + 1.0
OWNER_S = RESUBMIT_S + RESTART_S[1] + 1.0


class Judge:
    """Compares what everybody has at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world, self._auditor = cluster.world, cluster.auditor
        self._rows = cluster.database.rows
        self._events = [
            event
            for stored in cluster.nats.usage
            if isinstance(event := codec.decode(stored.subject, stored.data, 0), Entry)
        ]
        self.unresolved = 0

    def judge(self) -> None:
        """Raise the first broken promise."""
        self._nothing_is_left()
        for request_id, row in self._rows.items():
            self._row(request_id, row)
        for user in self._cluster.users:
            self._user(user)
        self._keys()

    def _fail(self, promise: str) -> None:
        self._world.fail(promise)

    def _nothing_is_left(self) -> None:
        desk = self._cluster.scheduler.desk
        assert desk is not None
        if left := [record.order.request_id for record in desk.records.unsettled()]:
            self._fail(f"requests {left} never ended")
        if desk.ownership.orphans or desk.ownership.followed:
            self._fail("ownerships are left")
        for lane in desk.lanes.values():
            status = lane.status()
            if left := [request_id for request_id in lane._live if request_id > 0]:
                self._fail(f"the lane still has {left}")
            if not lane._live and (status.waiting or status.running or status.owned_pages):
                self._fail(f"the lane is not empty: {status}")
        for gateway in self._cluster.gateways:
            if remains := gateway.remains:
                self._fail(f"{gateway.name} still has {remains}")

    def _row(self, request_id: int, row: Row) -> None:
        closing = row.entry.closing
        if closing is None:
            self.unresolved += 1
            if not self._died_together(request_id):
                self._fail(f"the row of {request_id} is open and somebody could have closed it")
            return
        choices = self._auditor.committed
        committed = sum(count for (request, _), count in choices.items() if request == request_id)
        if closing.output_tokens > committed:
            self._fail(f"request {request_id} bills {closing.output_tokens} of {committed} tokens")
        billed = closing.input_tokens + closing.output_tokens
        if closing.billable_tokens != (0 if closing.finish_reason == FinishReason.ERROR else billed):
            self._fail(f"request {request_id} bills {closing}")
        self._epoch(request_id, row)

    def _epoch(self, request_id: int, row: Row) -> None:
        """The closing of the highest epoch wins, whoever was faster; a fenced owner's loses."""
        published = [one.owner_epoch for one in self._events if one.request_id == request_id and one.closing]
        late = {a.entry.owner_epoch for a in self._cluster.database.audit if a.reason is AuditReason.LATE}
        if row.entry.owner_epoch != max(one for one in published if one not in late):
            self._fail(f"request {request_id} was closed by {row.entry.owner_epoch} of {published}")
        grants = [g for g in self._auditor.grants[request_id] if self._heard(g, request_id, row)]
        granted = max((grant.owner_epoch for grant in grants), default=0)
        if row.entry.owner_epoch < granted and not self._died_together(request_id):
            self._fail(f"epoch {row.entry.owner_epoch} of request {request_id} closed it under {granted}")

    def _heard(self, grant: Grant, request_id: int, row: Row) -> bool:
        """Whether a grant may have been heard; one that died with its scheduler leaves the earlier ones."""
        epoch = row.entry.owner_epoch
        closer = {(g.gateway, g.life) for g in self._auditor.grants[request_id] if g.owner_epoch == epoch}
        died = any(name == "scheduler" and at >= grant.at for name, _, at in self._cluster.deaths)
        return not (died and (grant.gateway, grant.life) in closer)

    def _died_together(self, request_id: int) -> bool:
        """Whether the scheduler died while it had yet to close what an owner that died had left.

        Or an owner died while it had yet to tell another scheduler.
        """
        opened = self._auditor.opened_at.get(request_id, 0.0)
        owners = {(grant.gateway, grant.life) for grant in self._auditor.grants[request_id]}
        deaths = [one for one in self._cluster.deaths if one[2] >= opened]
        gone = [at for name, life, at in deaths if (name, life) in owners]
        fell = [at for name, _, at in deaths if name == "scheduler"]
        return any(-OWNER_S <= then - at <= SCHEDULER_S for at in gone for then in fell)

    def _outlived(self, request_id: int, row: Row) -> bool:
        """Whether an earlier owner's closing stands, since the last one fell together with the scheduler."""
        last = max((grant.owner_epoch for grant in self._auditor.grants[request_id]), default=0)
        return row.entry.owner_epoch < last and self._died_together(request_id)

    def _user(self, user: User) -> None:
        if user.acceptance is None:
            return
        request_id = user.request_id
        row = self._rows.get(request_id)
        if row is None:
            self._fail(f"{user.name} saw request {request_id} accepted and there is no row")
            return
        closing = row.entry.closing
        seen = sum(choice.had for choice in user.choices)
        ends = [choice.ended for choice in user.choices]
        if closing is None:
            if user.closed is not None:
                self._fail(f"{user.name} was told the end of request {request_id}, which is unresolved")
        elif self._outlived(request_id, row):
            pass  # it may have told what nobody could close it with
        elif closing.output_tokens < seen or (None not in ends and closing.output_tokens > seen):
            self._fail(f"{user.name} saw {seen} tokens of {request_id}, billed {closing.output_tokens}")
        elif len(ends) == 1 and ends[0] not in {None, closing.finish_reason}:
            self._fail(f"{user.name} saw {request_id} end {ends[0]}, billed as {closing.finish_reason}")
        elif user.closed is not None and _told(user) != _billed(row):
            self._fail(f"{user.name} was told {_told(user)} of request {request_id}, billed {_billed(row)}")
        elif user.outcome.startswith("failed") and closing.billable_tokens:
            self._fail(f"{user.name} was told that request {request_id} failed, and pays for it")

    def _keys(self) -> None:
        """One generation and one bill for a tenant, key and body."""
        told: dict[tuple[str, str], set[int]] = defaultdict(set)
        prompts: dict[tuple[int, ...], tuple[str, str]] = {}
        for user in self._cluster.users:
            wish = user.wish
            if wish.key is None or wish.contested or wish.follows is not None:
                continue
            told[wish.tenant_id, wish.key] |= set(user.requests)
            prompts[tuple(wish.spec.prompt_token_ids or ())] = (wish.tenant_id, wish.key)
        for key, requests in told.items():
            if len(requests) > 1:
                self._fail(f"key {key} stands for requests {sorted(requests)}")
        billed: dict[tuple[str, str], list[int]] = defaultdict(list)
        for request_id, row in self._rows.items():
            asked = prompts.get(self._auditor.prompts.get(request_id, ()))
            if asked is not None and row.entry.closing is not None and row.entry.closing.billable_tokens:
                billed[asked].append(request_id)
        for key, several in billed.items():
            if len(several) > 1:
                self._fail(f"key {key} is billed as requests {several}")


def _told(user: User) -> tuple[int, int, int, int]:
    assert user.closed is not None
    one = user.closed
    return (int(one.finish_reason), one.input_tokens, one.output_tokens, one.billable_tokens)


def _billed(row: Row) -> tuple[int, int, int, int]:
    one = row.entry.closing
    assert one is not None
    return (one.finish_reason, one.input_tokens, one.output_tokens, one.billable_tokens)
