"""A Hugging Face directory as a model source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from kit.artifacts import decode_json
from services.registry.importers import safetensors_file
from services.registry.importers.families import gemma3_wrapper, is_wrapped, parse_config
from services.registry.importers.source import ModelSource, SourceError, Tensor

if TYPE_CHECKING:
    from services.registry.importers.families.decoder import DecoderConfig
    from services.registry.importers.safetensors_file import Entry

_INDEX = "model.safetensors.index.json"
_VISION_MARK = "<image_soft_token>"
_RECOMPUTED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


def open_directory(directory: Path, origin: str) -> ModelSource:
    """Check configuration, tokenizer and every tensor's name, type, shape and extent."""
    original = _read(directory / "config.json")
    config, config_json = parse_config(directory / "config.json", original)
    ids = _object(directory / "config.json") | _object(directory / "generation_config.json", optional=True)
    return ModelSource(
        config=config,
        config_json=config_json,
        tensors=_tensors(directory, config, wrapped=is_wrapped(original)),
        tokenizer_json=_tokenizer(directory / "tokenizer.json", config),
        chat_template=_chat_template(directory),
        eos_token_ids=_token_ids(directory, "eos_token_id", ids, config),
        bos_token_id=next(iter(_token_ids(directory, "bos_token_id", ids, config)), None),
        origin=origin,
        licence=_licence(directory / "README.md"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise SourceError(path, "is missing") from error
    except UnicodeDecodeError as error:
        raise SourceError(path, "is not UTF-8") from error


def _object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        document = decode_json(_read(path))
    except ValueError as error:
        raise SourceError(path, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise SourceError(path, "is not a JSON object")
    return document


def _tensors(directory: Path, config: DecoderConfig, *, wrapped: bool) -> list[Tensor]:
    found, listing = _entries(directory)
    if wrapped:
        named = ((gemma3_wrapper.text_tensor(name), entry) for name, entry in found.items())
        found = {name: entry for name, entry in named if name is not None}
    shapes = config.tensor_shapes()
    for name in sorted(found.keys() - shapes.keys()):
        # A tied head is a copy of the embeddings, and rotary tables follow from the configuration.
        if name != "lm_head.weight" and not _RECOMPUTED.fullmatch(name):
            raise SourceError(found[name].path, f"tensor {name} has no place in this architecture")
    for name, shape in shapes.items():
        if name not in found:
            raise SourceError(listing, f"tensor {name} is missing")
        if found[name].shape != shape:
            actual = list(found[name].shape)
            raise SourceError(
                found[name].path, f"tensor {name} is {actual}, the configuration says {list(shape)}"
            )
    return [Tensor(name, found[name].dtype, shape, found[name].chunks) for name, shape in shapes.items()]


def _entries(directory: Path) -> tuple[dict[str, Entry], Path]:
    """All tensors by name, and the file that ought to list them."""
    index = directory / _INDEX
    if not index.exists():
        single = directory / "model.safetensors"
        if not single.exists():
            raise SourceError(single, "is missing")
        return safetensors_file.read_header(single), single
    weight_map = _object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(index, "has no weight_map that gives every tensor a file")
    shards = {shard: _shard(directory, shard) for shard in sorted(set(weight_map.values()))}
    entries = {}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise SourceError(directory / shard, f"tensor {name} is missing, though the index places it here")
        entries[name] = shards[shard][name]
    return entries, index


def _shard(directory: Path, name: str) -> dict[str, Entry]:
    path = directory / name
    if Path(name).name != name or not path.is_file():
        raise SourceError(path, "is missing, though the index names it")
    return safetensors_file.read_header(path)


def _tokenizer(path: Path, config: DecoderConfig) -> str:
    text = _read(path)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise SourceError(path, f"is not a tokenizer: {error}") from error
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    if vocab.get(_VISION_MARK, -1) == config.vocab_size:
        del vocab[_VISION_MARK]
        text = _without_vision_mark(text)
    highest = max(vocab.values(), default=-1)
    if not 0 <= highest < config.vocab_size:
        raise SourceError(
            path, f"has token id {highest}, the configuration allows 0 to {config.vocab_size - 1}"
        )
    return text


def _without_vision_mark(text: str) -> str:
    """Gemma 3 has one tokenizer, whose last token only the models with vision embed."""
    document = json.loads(text)
    kept = [token for token in document["added_tokens"] if token["content"] != _VISION_MARK]
    return json.dumps(document | {"added_tokens": kept}, ensure_ascii=False)


def _chat_template(directory: Path) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        return _read(path)
    template = _object(directory / "tokenizer_config.json", optional=True).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _token_ids(directory: Path, key: str, document: dict[str, Any], config: DecoderConfig) -> tuple[int, ...]:
    value = document.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in ids:
        if not isinstance(token_id, int) or not 0 <= token_id < config.vocab_size:
            raise SourceError(directory / "config.json", f"{key}: {token_id} is not a token id")
    return tuple(ids)


def _licence(readme: Path) -> str:
    if not readme.exists():
        return "unknown"
    match = re.search(
        r"\A---\n(?:.*\n)*?license:\s*(\S+)", readme.read_text(encoding="utf-8", errors="replace")
    )
    return match[1] if match else "unknown"
