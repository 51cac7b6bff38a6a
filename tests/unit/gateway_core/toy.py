"""Small real tokenizers, trained on the spot."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from kit.artifacts import Manifest
from services.gateway.core.choice import ChoiceAssembler, Cursor
from services.gateway.core.tokenizing import ModelTokenizer

if TYPE_CHECKING:
    from services.gateway.core.vocabulary import Vocabulary

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS = 1, 2
CORPUS = [
    "the quick brown fox jumps over the lazy dog. user system assistant\n",
    "Hello, world! 你好\uff0c世界。 🚀🎉 naïve café\n",
    "STOP stop stopping abc abcd END\n\n",
] * 8
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def byte_level_json() -> str:
    """A byte-level BPE: every string has ids, every id has bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def manifest(context_length: int = 64, eos: tuple[int, ...] = (EOS,)) -> Manifest:
    return Manifest(
        name="toy",
        family="llama",
        context_length=context_length,
        source="test",
        licence="none",
        eos_token_ids=eos,
        bos_token_id=BOS,
        version="0" * 12,
        tokenizer_version="1" * 12,
        files={},
    )


@cache
def toy(context_length: int = 64, chat_template: str | None = CHATML) -> ModelTokenizer:
    return ModelTokenizer(manifest(context_length), byte_level_json(), chat_template)


@cache
def byte_fallback() -> Tokenizer:
    """A word-marked BPE with a token for each byte, as Llama 2 has; decodes with a leading space stripped."""
    words = ["\u2581", "a", "b", "\u2581a", "\u2581hello", "你", "é"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + words:
        vocab[token] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def word_level() -> Tokenizer:
    """Whole words and no decoder, as the smallest test models have: words are joined by spaces."""
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "t3": 3, "t4": 4, "t5": 5}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<s>", "</s>")])
    return tokenizer


def characters(text: str) -> tuple[Vocabulary, list[int]]:
    """A vocabulary that can write `text` byte by byte, and the ids that do."""
    ids = _ids_of_bytes()
    return toy().vocabulary, [ids[bytes([byte])] for byte in text.encode()]


@cache
def _ids_of_bytes() -> dict[bytes, int]:
    vocabulary = toy().vocabulary
    return {vocabulary.token_bytes(token_id): token_id for token_id in range(len(vocabulary))}


class ReadChoice(ChoiceAssembler):
    """A choice with one reader, which starts at `from_index`."""

    def __init__(self, vocabulary, stop=(), *, choice=0, from_index=0):
        super().__init__(vocabulary, stop, choice=choice)
        self.take = Cursor(self, from_index).take
