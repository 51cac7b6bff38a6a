import pytest

from services.gateway.core.choice import Alternative, NewToken, rebuild
from services.gateway.core.outcome import FinishReason
from tests.unit.gateway_core.toy import EOS, ReadChoice, characters


def written(text, stop=(), **kwargs):
    """An assembler and the tokens, one a byte, that write `text`."""
    vocabulary, ids = characters(text)
    return ReadChoice(vocabulary, stop, **kwargs), [NewToken(i) for i in ids]


def test_each_token_is_a_piece_with_its_number_when_the_reader_keeps_up():
    choice, tokens = written("abc", choice=2)
    seen = []
    for token in tokens:
        choice.feed([token])
        seen.append(choice.take())
    assert [(p.choice, p.index, p.count, p.text, p.text_offset) for p in seen] == [
        (2, 0, 1, "a", 0),
        (2, 1, 1, "b", 1),
        (2, 2, 1, "c", 2),
    ]
    assert all(piece.finish_reason is None for piece in seen)
    assert choice.take() is None


def test_a_slow_reader_gets_what_waited_as_one_piece():
    choice, tokens = written("abcdef")
    choice.feed(tokens[:2])
    choice.take()
    choice.feed(tokens[2:])
    choice.end(FinishReason.LENGTH)
    piece = choice.take()
    assert (piece.index, piece.count, piece.text, piece.finish_reason) == (2, 4, "cdef", FinishReason.LENGTH)
    assert choice.take() is None


def test_text_may_be_empty_while_a_character_is_incomplete():
    choice, tokens = written("🚀")
    texts = []
    for token in tokens:
        choice.feed([token])
        texts.append((choice.take().count, choice.text))
    assert texts == [(1, ""), (1, ""), (1, ""), (1, "🚀")]


def test_an_end_after_the_last_token_was_taken_is_a_piece_without_tokens():
    choice, tokens = written("ab")
    choice.feed(tokens)
    choice.take()
    choice.end(FinishReason.CANCELLED)
    piece = choice.take()
    assert (piece.index, piece.count, piece.text, piece.finish_reason) == (2, 0, "", FinishReason.CANCELLED)


def test_text_held_back_for_a_stop_is_released_at_the_end():
    choice, tokens = written("xST", ["STOP"])
    choice.feed(tokens)
    assert choice.take().text == "x"
    choice.end(FinishReason.LENGTH)
    piece = choice.take()
    assert (piece.count, piece.text, piece.text_offset) == (0, "ST", 1)
    assert choice.text == "xST"


def test_a_completed_stop_string_keeps_the_tokens_up_to_it_and_discards_those_beyond():
    choice, tokens = written("xENDyz", ["END"])
    assert choice.feed(tokens) is True
    assert choice.finish_reason is FinishReason.STOP
    assert choice.output_tokens == 4
    assert choice.text == "x"
    choice.knows(FinishReason.STOP, 4)
    piece = choice.take()
    assert (piece.count, piece.text, piece.finish_reason) == (4, "x", FinishReason.STOP)


@pytest.mark.parametrize("told", [(FinishReason.LENGTH, 4), (FinishReason.STOP, 5), (FinishReason.STOP, 3)])
def test_the_token_that_completes_a_stop_string_is_nobodys_to_hear_before_another_ended_there_too(told):
    choice, tokens = written("xENDyz", ["END"])
    choice.feed(tokens)
    piece = choice.take()
    assert (piece.count, piece.text, piece.finish_reason) == (3, "x", None)
    choice.knows(*told)
    assert choice.take() is None
    choice.knows(FinishReason.STOP, 4)
    last = choice.take()
    assert (last.index, last.count, last.text, last.finish_reason) == (3, 1, "", FinishReason.STOP)


def test_who_read_up_to_a_stop_string_that_another_never_heard_of_goes_on_without_a_seam():
    choice, tokens = written("xENDyENDz", ["END"])
    choice.feed(tokens)
    first = choice.take()
    choice.keep(tokens, FinishReason.CANCELLED)
    choice.silent = False
    rest = choice.take()
    assert (first.text + rest.text, first.count + rest.count) == ("xENDyENDz", 9)
    assert (rest.index, rest.finish_reason) == (3, FinishReason.CANCELLED)


def test_a_choice_closed_for_another_reason_at_its_stop_string_shows_all_that_is_billed():
    choice, tokens = written("xEND", ["END"])
    choice.feed(tokens)
    choice.cut(4, FinishReason.CANCELLED)
    assert (choice.text, choice.finish_reason) == ("xEND", FinishReason.CANCELLED)


def test_seen_from_outside_a_stop_string_counts_once_it_is_kept():
    vocabulary, ids = characters("xENDyz")
    tokens = [NewToken(i) for i in ids]
    running = rebuild(vocabulary, ["END"], tokens, None)
    assert (running.output_tokens, running.text, running.finish_reason) == (3, "x", None)
    ended = rebuild(vocabulary, ["END"], tokens[:4], FinishReason.STOP)
    assert (ended.output_tokens, ended.text, ended.finish_reason) == (4, "x", FinishReason.STOP)


def test_tokens_after_the_end_are_ignored():
    choice, tokens = written("xENDyz", ["END"])
    choice.feed(tokens[:4])
    choice.take()
    assert choice.feed(tokens[4:]) is False
    assert choice.output_tokens == 4
    assert choice.take() is None


def test_a_stop_string_completed_by_the_last_allowed_token_is_stop_not_length():
    choice, tokens = written("xEND", ["END"])
    assert choice.feed(tokens) is True
    choice.end(FinishReason.LENGTH)
    assert choice.finish_reason is FinishReason.STOP


def test_eos_on_the_last_allowed_token_counts_and_is_stop():
    choice, tokens = written("ab")
    choice.feed([*tokens, NewToken(EOS)])
    choice.end(FinishReason.STOP)
    piece = choice.take()
    assert (piece.count, piece.text, piece.finish_reason) == (3, "ab", FinishReason.STOP)
    assert choice.token_ids[-1] == EOS


def test_the_first_end_wins():
    choice, _ = written("a")
    choice.end(FinishReason.ERROR, "NAN_LOGITS")
    choice.end(FinishReason.CANCELLED)
    assert (choice.finish_reason, choice.error_reason) == (FinishReason.ERROR, "NAN_LOGITS")


def test_a_choice_that_ends_without_a_token_says_so_once():
    choice, _ = written("a")
    assert choice.take() is None
    choice.end(FinishReason.DEADLINE)
    piece = choice.take()
    assert (piece.index, piece.count, piece.text, piece.finish_reason) == (0, 0, "", FinishReason.DEADLINE)
    assert choice.take() is None


def test_text_ids_and_logprobs_never_drift_apart_after_a_stop_cut():
    choice, tokens = written("one STOP two", ["STOP"])
    choice.feed(
        [NewToken(t.token_id, -float(i), (Alternative(t.token_id, -float(i)),)) for i, t in enumerate(tokens)]
    )
    kept = len("one STOP")
    assert choice.token_ids == [t.token_id for t in tokens[:kept]]
    assert [record.logprob for record in choice.records] == [-float(i) for i in range(kept)]
    assert "".join(record.text for record in choice.records) == choice.text == "one "


def test_an_unfinished_character_is_flushed_as_a_replacement():
    choice, tokens = written("a你")
    choice.feed(tokens[:-1])
    assert choice.take().text == "a"
    choice.end(FinishReason.LENGTH)
    assert choice.take().text == "\ufffd"


def test_the_kept_tokens_alone_give_the_same_choice_again():
    choice, tokens = written("one S🚀 STOP two", ["STOP"])
    choice.feed(tokens)
    kept = [NewToken(i) for i in choice.token_ids]
    vocabulary, _ = characters("")
    again = rebuild(vocabulary, ["STOP"], kept, FinishReason.STOP)
    assert (again.text, again.token_ids, again.finish_reason) == (
        choice.text,
        choice.token_ids,
        FinishReason.STOP,
    )


def test_a_running_choice_rebuilt_shows_only_certain_text():
    vocabulary, ids = characters("abST")
    running = rebuild(vocabulary, ["STOP"], map(NewToken, ids), None, choice=3)
    assert (running.text, running.finish_reason, running.choice) == ("ab", None, 3)
