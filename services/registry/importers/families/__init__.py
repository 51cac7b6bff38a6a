"""Model families by the architecture that config.json names. A new family is one module and one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kit.artifacts import decode_json
from services.registry.importers.families import gemma3_wrapper
from services.registry.importers.families.gemma3 import Gemma3Config
from services.registry.importers.families.llama import LlamaConfig
from services.registry.importers.families.mistral import MistralConfig
from services.registry.importers.families.qwen2 import Qwen2Config
from services.registry.importers.families.qwen3 import Qwen3Config
from services.registry.importers.families.qwen3_moe import Qwen3MoeConfig
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from services.registry.importers.families.decoder import DecoderConfig

_CONFIGS: tuple[type[DecoderConfig], ...] = (
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Gemma3Config,
)
FAMILIES = {config.ARCHITECTURE: config for config in _CONFIGS}


def parse_config(path: Path, text: str | bytes) -> tuple[DecoderConfig, str]:
    """Check a Hugging Face config; `path` is the file to blame.

    Returns it with the config.json to keep: the same keys, and every default and the rotary settings
    spelled out as transformers 5 does, so that whoever loads the model need not know what is left out.
    """
    try:
        document = decode_json(text)
        if not isinstance(document, dict):
            raise SourceError(path, "is not a JSON object")
        family, document = _family(path, document)
        config = family.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "config"
        raise SourceError(path, f"{key}: {first['msg']}") from error
    except json.JSONDecodeError as error:
        raise SourceError(path, f"is not JSON: {error}") from error
    except ValueError as error:
        raise SourceError(path, str(error)) from error
    return config, json.dumps(document | config.model_dump(mode="json"), indent=2) + "\n"


def is_wrapped(text: str | bytes) -> bool:
    """Whether the text model is one part of a larger one."""
    architectures = json.loads(text).get("architectures") or []
    return architectures[:1] == [gemma3_wrapper.ARCHITECTURE]


def _family(path: Path, document: dict[str, Any]) -> tuple[type[DecoderConfig], dict[str, Any]]:
    architectures = document.get("architectures") or ["none named"]
    name = architectures[0] if isinstance(architectures, list) else architectures
    if name == gemma3_wrapper.ARCHITECTURE:
        name = Gemma3Config.ARCHITECTURE
        document = gemma3_wrapper.text_document(document, name)
    if not isinstance(name, str) or name not in FAMILIES:
        supported = ", ".join([*FAMILIES, gemma3_wrapper.ARCHITECTURE])
        raise SourceError(path, f"architecture {name} is unsupported; supported: {supported}")
    return FAMILIES[name], document
