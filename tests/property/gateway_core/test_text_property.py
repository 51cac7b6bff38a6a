"""Streamed text is the text of the tokens, however they arrive."""

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.core.choice import Alternative, Cursor, NewToken, rebuild
from services.gateway.core.detokenize import Detokenizer, decode
from services.gateway.core.outcome import FinishReason
from services.gateway.core.vocabulary import Vocabulary
from tests.property.gateway_core.rules import cut_at_stop
from tests.unit.gateway_core.toy import ReadChoice, byte_fallback, byte_level_json, characters, toy

VOCABULARY = toy().vocabulary
LIBRARY = Tokenizer.from_str(byte_level_json())
FALLBACK = byte_fallback()
FALLBACK_VOCABULARY = Vocabulary(FALLBACK)
WRITTEN = st.text(max_size=12) | st.text(alphabet="你好🚀🎉é\u200d👩\n a", max_size=12)


def ids_of(vocabulary):
    return st.lists(st.integers(0, len(vocabulary) - 1), max_size=30)


@given(ids_of(VOCABULARY))
def test_pieces_of_any_ids_add_up_to_the_whole_text_of_the_library(ids):
    detokenizer = Detokenizer(VOCABULARY)
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    assert "".join(pieces) + detokenizer.flush() == LIBRARY.decode(ids) == decode(VOCABULARY, ids)


@given(ids_of(FALLBACK_VOCABULARY))
def test_pieces_of_byte_fallback_ids_add_up_and_equal_the_library_where_it_loses_nothing(ids):
    detokenizer = Detokenizer(FALLBACK_VOCABULARY)
    whole = "".join([*map(detokenizer.feed, ids), detokenizer.flush()])
    assert whole == decode(FALLBACK_VOCABULARY, ids)
    library = FALLBACK.decode(ids)
    if "\ufffd" not in library:
        assert whole == library


@given(WRITTEN)
def test_no_piece_of_valid_text_holds_half_a_character(text):
    vocabulary, ids = characters(text)
    detokenizer = Detokenizer(vocabulary)
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""
    assert all(len(piece) <= 1 for piece in pieces)


@given(WRITTEN)
def test_encoding_and_decoding_lose_nothing(text):
    assert decode(VOCABULARY, LIBRARY.encode(text).ids) == text


@given(
    ids=ids_of(VOCABULARY),
    stops=st.lists(st.sampled_from(["a", "o", "OP", "the", " ", "\n\n", "🚀"]), max_size=3),
    takes=st.lists(st.booleans(), min_size=30, max_size=30),
    reason=st.sampled_from(FinishReason),
)
def test_pieces_carry_each_token_once_in_order_and_the_same_text_whatever_the_readers_speed(
    ids, stops, takes, reason
):
    choice = ReadChoice(VOCABULARY, stops)
    pieces = []
    for token_id, take in zip(ids, takes, strict=False):
        choice.feed([NewToken(token_id)])
        if take:
            pieces.append(choice.take())
    choice.end(reason)
    choice.knows(FinishReason.STOP, choice.output_tokens)
    pieces = [piece for piece in [*pieces, choice.take()] if piece]
    assert choice.take() is None

    carried = [record.token_id for piece in pieces for record in piece.tokens]
    assert carried == choice.token_ids == ids[: choice.output_tokens]
    assert [piece.index for piece in pieces] == [sum(p.count for p in pieces[:i]) for i in range(len(pieces))]
    assert [piece.text_offset for piece in pieces] == [
        sum(len(p.text) for p in pieces[:i]) for i in range(len(pieces))
    ]
    assert "".join(piece.text for piece in pieces) == choice.text
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == [choice.finish_reason]

    again = rebuild(VOCABULARY, stops, map(NewToken, choice.token_ids), choice.finish_reason)
    assert (again.text, again.token_ids) == (choice.text, choice.token_ids)
    text, stopped = cut_at_stop(decode(VOCABULARY, ids), stops)
    assert choice.text == text
    assert choice.finish_reason is (FinishReason.STOP if stopped else reason)


@given(
    written=WRITTEN,
    stops=st.lists(st.sampled_from(["a", "o", "好", "🚀", " a"]), max_size=3),
    takes=st.lists(st.booleans(), min_size=60, max_size=60),
    split=st.integers(0, 60),
    joins=st.integers(0, 60),
    reason=st.sampled_from(FinishReason),
)
def test_what_one_reader_saw_before_a_token_and_another_from_it_on_is_the_whole(
    written, stops, takes, split, joins, reason
):
    vocabulary, ids = characters(written)
    tokens = [NewToken(i, -0.5 * at, (Alternative(i, -0.5 * at),)) for at, i in enumerate(ids)]
    choice = ReadChoice(vocabulary, stops)
    second, seen = None, []
    for number, token in enumerate(tokens):
        choice.feed([token])
        if takes[number] and (piece := choice.take()):
            seen.append(piece)
        if number == joins:
            second = Cursor(choice, split)
    second = second or Cursor(choice, split)
    before = second.take()
    choice.end(reason)
    choice.knows(FinishReason.STOP, choice.output_tokens)
    rest = [piece for piece in (before, second.take()) if piece]

    first = choice.records[:split]
    after = [record for piece in rest for record in piece.tokens]
    assert [*first, *after] == choice.records
    if split <= choice.output_tokens:
        assert "".join(r.text for r in first) + "".join(piece.text for piece in rest) == choice.text
    assert [piece.finish_reason for piece in rest][-1] is choice.finish_reason
    assert rest[0].index == split
    assert rest[0].text_offset == sum(len(record.text) for record in first)
    # Whatever pieces the first reader had got by then, it had the same text for the same tokens.
    for piece in seen:
        if piece.finish_reason is None:
            assert piece.text == "".join(r.text for r in choice.records[piece.index :][: piece.count])


@given(
    written=WRITTEN,
    stops=st.lists(st.sampled_from(["a", "o", "oo", "aba", "好", "🚀", " a"]), max_size=3),
    takes=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_what_was_read_before_a_stop_string_and_what_is_kept_beyond_it_is_the_whole(written, stops, takes):
    vocabulary, ids = characters(written)
    tokens = [NewToken(i) for i in ids]
    choice = ReadChoice(vocabulary, stops)
    pieces = []
    for token, take in zip(tokens, takes, strict=False):
        choice.feed([token])
        if take and (piece := choice.take()):
            pieces.append(piece)
    choice.keep(tokens, FinishReason.CANCELLED)
    choice.silent = False
    pieces.append(choice.take())
    assert "".join(piece.text for piece in pieces) == written
    assert sum(piece.count for piece in pieces) == len(tokens)
    assert pieces[-1].finish_reason is FinishReason.CANCELLED
