"""Mistral: a Llama whose layers may all see only a window of the last tokens."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from services.registry.importers.families.decoder import SiluConfig


class MistralConfig(SiluConfig):
    """A Mistral; `sliding_window` null is no window, and leaving it out is the first release's."""

    FAMILY: ClassVar[str] = "mistral"
    ARCHITECTURE: ClassVar[str] = "MistralForCausalLM"
    DEFAULTS: ClassVar[dict[str, Any]] = {"sliding_window": 4096}

    sliding_window: int | None = Field(None, gt=0)
