"""What a request is billed, and how it is told: the usage record, the verdict, and the error of a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway.core.effects import UsageRecord
from services.gateway.core.outcome import FinishReason, Timings, Verdict, close, error_of

if TYPE_CHECKING:
    from kit.errors import ServiceError
    from services.gateway.core.order import Order
    from services.gateway.core.output import Output


class Account:
    """The billing side of one request at its owner."""

    def __init__(self) -> None:
        self.opened_at = 0.0  # seconds since 1970
        self.terminal: tuple[int, int, float] | None = None  # input and cached tokens, queue seconds
        self.failure: ServiceError | None = None
        self.verdict: Verdict | None = None
        self.closing_epoch = 0  # ownership whose `closed` is being written

    def usage(self, order: Order, owner_epoch: int, runtime_revision: str) -> UsageRecord:
        """What both usage events say."""
        return UsageRecord(
            request_id=order.request_id,
            owner_epoch=owner_epoch,
            tenant_id=order.tenant_id,
            model_version=order.model_version,
            tokenizer_version=order.tokenizer_version,
            runtime_revision=runtime_revision,
            opened_at=self.opened_at,
        )

    def judge(self, order: Order, output: Output, now: float) -> Verdict:
        """The verdict as of now; what still runs is incomplete."""
        if self.verdict is not None:
            return self.verdict
        prompt_tokens = len(order.prompt_token_ids) if output.started else 0
        input_tokens, cached_tokens, queue_s = self.terminal or (prompt_tokens, 0, 0.0)
        reasons = tuple(choice.finish_reason or FinishReason.INCOMPLETE for choice in output.choices)
        kept = tuple(choice.output_tokens for choice in output.choices)
        closed = close(
            reasons,
            kept,
            Timings(order.received, now, output.first_token, queue_s),
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
        )
        return Verdict(closed, kept, reasons, self._reason_of_failure(output))

    def error(self, verdict: Verdict) -> ServiceError | None:
        """What callers get instead of `done`."""
        if verdict.closed.finish_reason is not FinishReason.ERROR:
            return None
        return self.failure or error_of(verdict.error_reason)

    def _reason_of_failure(self, output: Output) -> str:
        if self.failure is not None:
            return self.failure.reason
        return next((choice.error_reason for choice in output.choices if choice.error_reason), "")
