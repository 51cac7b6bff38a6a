"""Write a checked model into a staging directory and publish it whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit import artifacts
from services.registry.importers import safetensors_file

if TYPE_CHECKING:
    from pathlib import Path

    from services.registry.importers.source import ModelSource, Progress


# What a licence's identifier does not say by itself.
_TERMS = {"gemma": "Gemma Terms of Use, https://ai.google.dev/gemma/terms; using the model accepts them"}


def assemble(source: ModelSource, name: str, models_dir: Path, progress: Progress) -> artifacts.Manifest:
    """Make `source` a version of `name`; a second import of the same bytes changes nothing."""
    progress(f"{source.config.FAMILY} model, {_licence(source.licence)}")
    with artifacts.staging(models_dir) as staged:
        safetensors_file.write(staged / artifacts.WEIGHTS, source.tensors, progress)
        (staged / artifacts.CONFIG).write_text(source.config_json, encoding="utf-8")
        (staged / artifacts.TOKENIZER).write_text(source.tokenizer_json, encoding="utf-8")
        if source.chat_template is not None:
            (staged / artifacts.CHAT_TEMPLATE).write_text(source.chat_template, encoding="utf-8")
        progress("digesting and sealing")
        return artifacts.publish(staged, models_dir, _meta(source, name))


def _meta(source: ModelSource, name: str) -> artifacts.ManifestMeta:
    return artifacts.ManifestMeta(
        name=name,
        family=source.config.FAMILY,
        context_length=source.config.max_position_embeddings,
        source=source.origin,
        licence=source.licence,
        eos_token_ids=source.eos_token_ids,
        bos_token_id=source.bos_token_id,
    )


def _licence(licence: str) -> str:
    terms = _TERMS.get(licence)
    return f"licence {licence}" + (f" ({terms})" if terms else "")
