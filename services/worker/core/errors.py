"""What a worker refuses.

ServiceError
+-- PlanError               FAILED_PRECONDITION: the plan does not follow what this worker accepted
|   +-- FencedError         a newer attachment exists
|   +-- GapError            a step is missing, or one is repeated whose result is no longer kept
|   +-- MalformedPlanError  INVALID_ARGUMENT: the plan's columns disagree
+-- NotLoadedError          UNAVAILABLE: no engine yet, or no longer
"""

from __future__ import annotations

from kit.errors import Code, ServiceError


class PlanError(ServiceError):
    """A plan that must not run."""


class FencedError(PlanError):
    """The plan's epoch is below the highest one accepted."""

    def __init__(self, epoch: int, highest: int) -> None:
        super().__init__(Code.FAILED_PRECONDITION, "EPOCH_FENCED", f"epoch {epoch} is below {highest}")


class GapError(PlanError):
    """The plan's step neither follows the last one nor repeats a kept one."""

    def __init__(self, step: int, expected: int) -> None:
        super().__init__(Code.FAILED_PRECONDITION, "STEP_GAP", f"step {step} where {expected} was expected")


class MalformedPlanError(PlanError):
    """Columns of the plan that belong together differ in length."""

    def __init__(self, first: str, second: str) -> None:
        message = f"{first} and {second} must have as many values"
        super().__init__(Code.INVALID_ARGUMENT, "INVALID_REQUEST", message, first)


class NotLoadedError(ServiceError):
    """The engine cannot take plans."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNAVAILABLE, "NO_CAPACITY", message)
