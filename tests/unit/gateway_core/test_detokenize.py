import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers

from services.gateway.core.detokenize import Detokenizer, decode
from services.gateway.core.vocabulary import UnsupportedTokenizerError, Vocabulary, byte_alphabet
from tests.unit.gateway_core.toy import EOS, byte_fallback, byte_level_json, characters, toy, word_level


def pieces(vocabulary, ids):
    detokenizer = Detokenizer(vocabulary)
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


def test_an_emoji_split_over_tokens_comes_whole_with_its_last_byte():
    vocabulary, ids = characters("a🚀b")
    assert pieces(vocabulary, ids) == ["a", "", "", "", "🚀", "b", ""]


def test_a_character_cut_off_at_the_end_is_flushed_as_a_replacement():
    vocabulary, ids = characters("a你")
    assert pieces(vocabulary, ids[:-1]) == ["a", "", "", "\ufffd"]


def test_bytes_that_can_never_be_a_character_do_not_hold_up_what_follows():
    vocabulary, ids = characters("🚀a")
    assert pieces(vocabulary, [*ids[:2], ids[-1]]) == ["", "", "\ufffda", ""]


def test_special_and_unknown_tokens_add_no_text():
    vocabulary, ids = characters("ab")
    assert decode(vocabulary, [0, ids[0], EOS, ids[1], 10**6, -1]) == "ab"
    assert vocabulary.token_text(EOS) == "<|im_end|>"
    assert vocabulary.token_text(10**6) == ""


def test_an_eos_that_is_not_marked_special_adds_no_text():
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.add_tokens(["</end>"])
    eos = tokenizer.token_to_id("</end>")
    assert decode(Vocabulary(tokenizer), [eos]) == "</end>"
    assert decode(Vocabulary(tokenizer, silent=[eos]), [eos]) == ""


def test_an_added_token_that_is_not_special_is_text_as_it_is_written():
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.add_tokens(["é"])
    assert decode(Vocabulary(tokenizer), [tokenizer.token_to_id("é")]) == "é"


def test_a_token_that_is_no_character_alone_reads_as_replacement_and_keeps_its_bytes():
    vocabulary, ids = characters("é")
    assert vocabulary.token_text(ids[0]) == "\ufffd"
    assert vocabulary.token_bytes(ids[0]) == b"\xc3"


def test_the_byte_alphabet_is_the_one_of_the_library():
    assert byte_alphabet().keys() == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_byte_level_text_equals_the_librarys():
    tokenizer = Tokenizer.from_str(byte_level_json())
    text = "Hello, 世界 🚀🎉 naïve\n\ttabs  and   spaces"
    ids = tokenizer.encode(text).ids
    assert decode(toy().vocabulary, ids) == tokenizer.decode(ids) == text


def test_word_marked_tokens_lose_one_leading_space_and_fall_back_to_bytes():
    tokenizer = byte_fallback()
    ids = [
        tokenizer.token_to_id(t)
        for t in ("<s>", "▁hello", "▁a", "<0xF0>", "<0x9F>", "<0x9A>", "<0x80>", "你")
    ]
    assert decode(Vocabulary(tokenizer), ids) == tokenizer.decode(ids) == "hello a🚀你"


def test_whole_words_are_joined_by_spaces():
    tokenizer = word_level()
    ids = [1, 3, 4, 2, 5]
    assert decode(Vocabulary(tokenizer), ids) == tokenizer.decode(ids) == "t3 t4 t5"
    assert pieces(Vocabulary(tokenizer), [3, 4]) == ["t3", " t4", ""]


def test_a_metaspace_decoder_is_understood():
    tokenizer = byte_fallback()
    ids = [tokenizer.token_to_id(t) for t in ("▁hello", "▁a", "b")]
    clone = Tokenizer.from_str(tokenizer.to_str())
    clone.decoder = decoders.Metaspace()
    assert decode(Vocabulary(clone), ids) == clone.decode(ids) == "hello ab"


def test_a_decoder_without_a_table_of_bytes_is_refused_by_name():
    tokenizer = Tokenizer.from_str(byte_level_json())
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedTokenizerError, match="WordPiece"):
        Vocabulary(tokenizer)
