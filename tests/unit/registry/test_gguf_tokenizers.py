"""Tokenizers rebuilt from GGUF metadata give the ids that the reference gave, string by string."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from tokenizers import Tokenizer

from services.registry.importers.gguf_file import GgufFile
from services.registry.importers.gguf_tokenizer import vocabulary_of
from services.registry.importers.source import SourceError

if TYPE_CHECKING:
    from services.registry.importers.gguf_tokenizer import Vocabulary

REFERENCE = json.loads((Path(__file__).parents[2] / "data/registry/tokenizers.json").read_text())
STRINGS: list[str] = REFERENCE["strings"]
PIECES: dict[str, dict[str, Any]] = {case["name"]: case for case in REFERENCE["sentencepiece"]}
BYTE_LEVEL: dict[str, Any] = REFERENCE["byte_level"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
TURN_END = "<end_of_turn>"


def sentencepiece(tmp_path: Path, case: dict[str, Any], **more: Any) -> Vocabulary:
    pieces = [*case["pieces"], [TURN_END, -1000.0, CONTROL]]
    fields = {
        "model": "llama",
        "tokens": [piece for piece, _, _ in pieces],
        "scores": [float(score) for _, score, _ in pieces],
        "token_type": [kind for _, _, kind in pieces],
        "unknown_token_id": case["unk"],
        "bos_token_id": case["bos"],
        "eos_token_id": case["eos"],
        "add_space_prefix": case["add_space_prefix"],
    }
    return vocabulary(tmp_path, fields | more)


def byte_level(tmp_path: Path, pre: str, **more: Any) -> Vocabulary:
    fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": BYTE_LEVEL["tokens"],
        "merges": BYTE_LEVEL["merges"],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return vocabulary(tmp_path, fields | more)


def vocabulary(tmp_path: Path, fields: dict[str, Any]) -> Vocabulary:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for key, value in fields.items():
        write(writer, f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return vocabulary_of(GgufFile(tmp_path / "tiny.gguf"))


def write(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case list():
            writer.add_array(key, value)
        case str():
            writer.add_string(key, value)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)


def differing(tokenizer: Tokenizer, expected: list[list[int]]) -> dict[str, list[str]]:
    found = [tokenizer.encode(text, add_special_tokens=False) for text in STRINGS]
    return {
        text: encoding.tokens
        for text, encoding, ids in zip(STRINGS, found, expected, strict=True)
        if encoding.ids != ids
    }


@pytest.mark.parametrize("case", PIECES.values(), ids=PIECES)
def test_pieces_with_scores_split_as_sentencepiece_does(tmp_path: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece(tmp_path, case).tokenizer_json)
    assert differing(tokenizer, case["ids"]) == {}


@pytest.mark.parametrize("case", [PIECES["prefix"], PIECES["user-defined"]], ids=["prefix", "user-defined"])
def test_with_bytes_to_fall_back_on_every_text_comes_back(tmp_path: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece(tmp_path, case).tokenizer_json)
    texts = [text for text in STRINGS if "\u2581" not in text]
    decoded = [tokenizer.decode(tokenizer.encode(text).ids) for text in texts]
    assert decoded == texts


@pytest.mark.parametrize("pre", BYTE_LEVEL["ids"])
def test_byte_level_text_is_cut_as_each_model_cuts_it(tmp_path: Path, pre: str) -> None:
    tokenizer = Tokenizer.from_str(byte_level(tmp_path, pre).tokenizer_json)
    assert differing(tokenizer, BYTE_LEVEL["ids"][pre]) == {}


def test_control_tokens_match_in_text_and_the_text_after_one_starts_anew(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece(tmp_path, PIECES["prefix"]).tokenizer_json)
    tokens = tokenizer.encode(f"the{TURN_END}the").tokens
    assert tokens == ["<s>", "\u2581the", TURN_END, "\u2581the"]


def test_a_user_defined_token_is_never_joined_with_its_neighbours(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece(tmp_path, PIECES["user-defined"]).tokenizer_json)
    tokens = tokenizer.encode(" the<b> the", add_special_tokens=False).tokens
    assert tokens == ["\u2581the", "<b>", "\u2581the"]
    assert tokenizer.encode("<b>", add_special_tokens=False).ids == [tokenizer.token_to_id("<b>")]


@pytest.mark.parametrize(("said", "first"), [({}, "<s>"), ({"add_bos_token": False}, "\u2581the")])
def test_sentencepiece_models_start_with_bos_unless_the_file_says_no(
    tmp_path: Path, said: dict[str, bool], first: str
) -> None:
    tokenizer = Tokenizer.from_str(sentencepiece(tmp_path, PIECES["prefix"], **said).tokenizer_json)
    assert tokenizer.encode("the").tokens[0] == first


def test_the_end_of_a_turn_stops_although_no_key_names_it(tmp_path: Path) -> None:
    found = sentencepiece(tmp_path, PIECES["prefix"])
    assert found.eos_token_ids == (PIECES["prefix"]["eos"], found.size - 1)


def without_a_byte() -> list[int]:
    kinds = [kind for _, _, kind in PIECES["prefix"]["pieces"]]
    kinds[kinds.index(6)] = NORMAL
    return [*kinds, CONTROL]


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"scores": [0.5]}, r"tokenizer\.ggml\.scores does not fit"),
        ({"scores": None}, r"tokenizer\.ggml\.scores is missing"),
        ({"token_type": [7]}, r"tokenizer\.ggml\.token_type does not fit"),
        ({"token_type": without_a_byte()}, r"tokenizer\.ggml\.tokens has 255 of 256 byte tokens"),
        ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens is no list of tokens"),
        ({"bos_token_id": 10**6}, r"tokenizer\.ggml\.bos_token_id: 1000000 is not among"),
        ({"bos_token_id": None}, r"tokenizer\.ggml\.bos_token_id is missing"),
    ],
)
def test_broken_pieces_are_refused_by_key(tmp_path: Path, more: dict[str, Any], match: str) -> None:
    with pytest.raises(SourceError, match=rf"tiny\.gguf: metadata {match}"):
        sentencepiece(tmp_path, PIECES["prefix"], **more)
