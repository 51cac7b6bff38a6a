"""Gemma 3 with a vision tower: only its text model is imported."""

from __future__ import annotations

import re
from typing import Any

from services.registry.importers.families.rope import object_of

ARCHITECTURE = "Gemma3ForConditionalGeneration"
_VISION = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
_TEXT = re.compile(r"(language_model\.model|model\.language_model)\.|language_model\.(?=lm_head\.)")


def text_document(document: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The configuration of the text model, as if it had been published alone."""
    text = object_of(document, "text_config")
    outer = {key: document[key] for key in ("bos_token_id", "eos_token_id") if key in document}
    return outer | text | {"architectures": [architecture], "model_type": "gemma3_text"}


def text_tensor(name: str) -> str | None:
    """What a tensor is called in the text model, None for one of the vision part."""
    if _VISION.match(name):
        return None
    match = _TEXT.match(name)
    if match is None:
        return name
    return ("model." if match[1] else "") + name[match.end() :]
