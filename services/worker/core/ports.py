"""What the worker's shell needs of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenloom.api.worker.v1 import worker_pb2


class Engine(Protocol):
    """One loaded model version with its page pool; every call comes from the one engine thread."""

    @property
    def model_version(self) -> str:
        """`name@version` of what is loaded."""
        ...

    @property
    def runtime_revision(self) -> str:
        """Build, device and precision; equal revisions give equal results."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens a page holds."""
        ...

    @property
    def page_count(self) -> int:
        """Pages in the pool, numbered from 0."""
        ...

    @property
    def slot_count(self) -> int:
        """Sequences that can be resident at once."""
        ...

    @property
    def max_step_tokens(self) -> int:
        """Most tokens one step may carry."""
        ...

    @property
    def context_length(self) -> int:
        """Longest prompt plus output, in tokens."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of the output head."""
        ...

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one token takes over all layers."""
        ...

    def execute(self, plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        """Run one step. A bad row becomes a RowError and ends in nothing else; its slot is released."""
        ...

    def reset(self) -> None:
        """Release every slot: a new epoch begins with an empty worker."""
        ...
