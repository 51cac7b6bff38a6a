"""A GGUF file as a model source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from services.registry.importers.families import parse_config
from services.registry.importers.gguf_config import config_of, family_of
from services.registry.importers.gguf_file import GgufFile
from services.registry.importers.gguf_tensors import tensors_of
from services.registry.importers.gguf_tokenizer import vocabulary_of
from services.registry.importers.source import ModelSource

if TYPE_CHECKING:
    from pathlib import Path


def open_gguf(path: Path, origin: str) -> ModelSource:
    """Check the whole file but its weights' values, which are checked as they are written."""
    file = GgufFile(path)
    family = family_of(file)
    vocabulary = vocabulary_of(file)
    document = config_of(file, vocabulary.size, vocabulary.eos_token_ids, vocabulary.bos_token_id)
    config, config_json = parse_config(path, json.dumps(document))
    return ModelSource(
        config=config,
        config_json=config_json,
        tensors=tensors_of(file, family, config),
        tokenizer_json=vocabulary.tokenizer_json,
        chat_template=file.metadata("tokenizer.chat_template", str, "") or None,
        eos_token_ids=vocabulary.eos_token_ids,
        bos_token_id=vocabulary.bos_token_id,
        origin=origin,
        licence=file.metadata("general.license", str, "unknown"),
    )
