"""What a generation request says: the one model that all three faces are validated against.

Each field's description states what is allowed; a refusal quotes it, and never the value it refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, PrivateAttr

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_MODEL_CHARS = 256
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def _encodable(text: str) -> str:
    """Refuse lone surrogates: UnicodeEncodeError is a ValueError, as a validator's must be."""
    text.encode()
    return text


def _within_stop_bytes(stop: str) -> str:
    if len(stop.encode()) > MAX_STOP_BYTES:
        raise ValueError
    return stop


Text = Annotated[str, AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
StopString = Annotated[str, Field(min_length=1), AfterValidator(_within_stop_bytes)]
# Only the container is lenient, so that lists become tuples; elements stay strict.
_ARRAY = Field(strict=False)


class _Strict(BaseModel):
    """Nothing is coerced, nothing unknown is ignored, and errors do not carry the input."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class ChatMessage(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(description="'system', 'user' or 'assistant'")
    content: Text = Field(description="a string of valid Unicode")


class PromptSpec(_Strict):
    """A model and what it shall continue."""

    model: Text = Field(
        min_length=1,
        max_length=MAX_MODEL_CHARS,
        description=f"a model name or name@version of at most {MAX_MODEL_CHARS} characters",
    )
    prompt: Text | None = Field(None, min_length=1, description="a non-empty string of valid Unicode")
    messages: Annotated[tuple[ChatMessage, ...] | None, _ARRAY, FailFast()] = Field(
        None, min_length=1, description="a non-empty array of {role, content}"
    )
    _spelling: Callable[[str], str] = PrivateAttr(default=str)

    def named(self, field: str) -> str:
        """The caller's spelling of a field of this model, e.g. `maxOutputTokens`."""
        return self._spelling(field)


class GenerationSpec(PromptSpec):
    """One generation, valid but for what only the model can tell (`limits.prepare`)."""

    prompt_token_ids: Annotated[tuple[TokenId, ...] | None, _ARRAY, FailFast()] = Field(
        None, min_length=1, description="a non-empty array of token ids: integers of at least 0"
    )
    max_output_tokens: int | None = Field(
        None, ge=1, le=INT32_MAX, description=f"an integer from 1 to {INT32_MAX}"
    )
    deadline_ms: int | None = Field(None, ge=1, le=INT32_MAX, description=f"an integer from 1 to {INT32_MAX}")
    temperature: float = Field(1.0, ge=0, le=2, description="a number from 0 to 2")
    top_p: float = Field(1.0, gt=0, le=1, description="a number above 0 and at most 1")
    top_k: int = Field(0, ge=0, le=INT32_MAX, description=f"an integer from 0 (keep all) to {INT32_MAX}")
    min_p: float = Field(0.0, ge=0, le=1, description="a number from 0 to 1")
    seed: int | None = Field(None, ge=-(2**63), le=INT64_MAX, description="a 64-bit signed integer")
    stop: Annotated[tuple[StopString, ...], _ARRAY, FailFast()] = Field(
        (),
        max_length=MAX_STOPS,
        description=f"an array of at most {MAX_STOPS} strings of 1 to {MAX_STOP_BYTES} bytes each",
    )
    n: int = Field(1, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    logprobs: int | None = Field(
        None, ge=0, le=MAX_TOP_LOGPROBS, description=f"an integer from 0 to {MAX_TOP_LOGPROBS}"
    )
    ignore_eos: bool = Field(False, description="true or false")
    resume: bool = Field(False, description="true or false")
    priority: Literal["interactive", "standard", "batch"] | None = Field(
        None, description="'interactive', 'standard' or 'batch'"
    )
