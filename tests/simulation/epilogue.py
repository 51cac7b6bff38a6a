"""The epilogue: in calm weather every way to end a request ends it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.core.outcome import FinishReason
from services.gateway.core.spec import GenerationSpec
from tests.simulation import tokens
from tests.simulation.user import Canceller, Wish

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.cluster import Cluster
    from tests.simulation.user import User

LONG = 40  # tokens, in steps of 20 ms: much longer than anything here takes
LOOK_S = 0.01
DEADLINE_S = 0.35


class Epilogue:
    """Three users with long generations, each ended in its own way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._expected: list[tuple[User, FinishReason]] = []

    def begin(self) -> None:
        """Let them ask."""
        self._ask(FinishReason.CANCELLED, lambda user: user.crash())
        self._ask(FinishReason.CANCELLED, self._delete, key="epilogue")
        self._ask(FinishReason.DEADLINE, lambda _: None, deadline_s=DEADLINE_S)

    def judge(self) -> None:
        """Each ended for its reason, and soon."""
        for user, reason in self._expected:
            if user.outcome.startswith("told DEADLINE"):
                continue  # it was not even taken
            row = self._cluster.database.rows.get(user.request_id)
            closing = row.entry.closing if row is not None else None
            if closing is None or closing.finish_reason != reason or closing.output_tokens >= LONG:
                self._cluster.world.fail(f"{user.name} was to end as {reason.name} at once: {closing}")

    def _ask(
        self,
        reason: FinishReason,
        act: Callable[[User], None],
        *,
        key: str | None = None,
        deadline_s: float | None = None,
    ) -> None:
        number = len(self._expected)
        spec = GenerationSpec(
            model=tokens.NAME, prompt_token_ids=(60 + number, 60), max_output_tokens=LONG, ignore_eos=True
        )
        user = self._cluster.add_user(Wish(spec, key=key, deadline_s=deadline_s))
        self._cluster.start_one(user)
        self._expected.append((user, reason))
        self._await(user, act)

    def _await(self, user: User, act: Callable[[User], None]) -> None:
        if len(user.choices[0].tokens) >= 2:
            act(user)
        else:
            self._cluster.world.after(LOOK_S, lambda: self._await(user, act))

    def _delete(self, user: User) -> None:
        cluster = self._cluster
        Canceller(cluster.network, "epilogue", user, user.request_id, cluster.gateways).start()
