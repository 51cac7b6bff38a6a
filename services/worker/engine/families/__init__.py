"""Model families by architecture name, as config.json gives it. A new family is one module and one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.worker.engine.errors import EngineError, UnsupportedModelError
from services.worker.engine.families import gemma3, llama, mistral, qwen2, qwen3, qwen3_moe

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.worker.engine.spec import Config, ModelSpec

FAMILIES: dict[str, Callable[[Config], ModelSpec]] = {
    "LlamaForCausalLM": llama.read,
    "MistralForCausalLM": mistral.read,
    "Qwen2ForCausalLM": qwen2.read,
    "Qwen3ForCausalLM": qwen3.read,
    "Qwen3MoeForCausalLM": qwen3_moe.read,
    "Gemma3ForCausalLM": gemma3.read,
}


def read_model(config: Config) -> ModelSpec:
    """Read config.json as the architecture it names."""
    named = config.get("architectures") or ()
    for name in named:
        if name in FAMILIES:
            return _read(name, config)
    found = ", ".join(named) or config.get("model_type") or "none named"
    raise UnsupportedModelError(f"architecture {found} is not supported; supported: {', '.join(FAMILIES)}")


def _read(name: str, config: Config) -> ModelSpec:
    try:
        return FAMILIES[name](config)
    except KeyError as missing:
        raise EngineError(f"config.json lacks {missing}") from None
    except (TypeError, ValueError) as wrong:
        raise EngineError(f"config.json cannot be read as {name}: {wrong}") from wrong
