"""Model families by architecture name, as config.json gives it. A new family is one module and one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.worker.engine.errors import UnsupportedModelError
from services.worker.engine.families import llama

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.worker.engine.batch import Forward
    from services.worker.engine.kv import PagePool
    from services.worker.engine.spec import ModelSpec
    from services.worker.engine.weights import Checkpoint

    Build = Callable[[ModelSpec, Checkpoint, PagePool], Forward]

FAMILIES: dict[str, Build] = {"LlamaForCausalLM": llama.build}


def find_family(config: dict[str, Any]) -> Build:
    """Return what builds the forward of config.json's architecture."""
    for name in config.get("architectures") or ():
        if name in FAMILIES:
            return FAMILIES[name]
    found = config.get("architectures") or config.get("model_type") or "none named"
    raise UnsupportedModelError(f"architecture {found} is not supported; supported: {', '.join(FAMILIES)}")
