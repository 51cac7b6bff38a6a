"""Llama: RMS norms, grouped-query attention, gated SiLU; no biases."""

from __future__ import annotations

from typing import ClassVar, Literal

from services.registry.importers.families.decoder import SiluConfig


class LlamaConfig(SiluConfig):
    """A Llama."""

    FAMILY: ClassVar[str] = "llama"
    ARCHITECTURE: ClassVar[str] = "LlamaForCausalLM"

    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
