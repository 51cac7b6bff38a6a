"""Rotary settings of config.json, in transformers' newer spelling (`rope_parameters`) and the older one."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

DEFAULT_THETA = 10_000.0

# What the frequencies are rounded to once they are computed.
RopeFrequencies: TypeAlias = Literal["float32", "bfloat16"]


class DefaultRope(BaseModel):
    """Plain rotation."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    rope_type: Literal["default"]
    rope_theta: float = Field(gt=0)


class LinearRope(BaseModel):
    """Positions divided by a factor."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    rope_type: Literal["linear"]
    rope_theta: float = Field(gt=0)
    factor: float = Field(gt=0)


class Llama3Rope(BaseModel):
    """Llama 3's stretch of the rotary frequencies."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    rope_type: Literal["llama3"]
    rope_theta: float = Field(gt=0)
    factor: float = Field(gt=0)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_max_position_embeddings: PositiveInt


def rope_parameters(data: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings of a model whose layers all rotate alike."""
    rope = object_of(data, "rope_parameters") or object_of(data, "rope_scaling")
    return spelled_out(rope, data.get("rope_theta", DEFAULT_THETA))


def spelled_out(rope: dict[str, Any], theta: object) -> dict[str, Any]:
    """Settings with their kind and base named."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    return {"rope_theta": theta} | rope | {"rope_type": kind}


def object_of(data: dict[str, Any], key: str) -> dict[str, Any]:
    """The object at `key`, empty when there is none."""
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{key} must be an object")
    return value
