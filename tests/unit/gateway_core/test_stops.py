import time

import pytest

from services.gateway.core.stops import StopMatcher


def run(stops, *pieces):
    matcher = StopMatcher(stops)
    seen = []
    for piece in pieces:
        scan = matcher.feed(piece)
        seen.append(scan.text)
        if scan.stopped:
            return seen, True
    return [*seen, matcher.flush()], False


def test_without_stops_text_passes_untouched():
    assert run([], "a", "b") == (["a", "b", ""], False)


@pytest.mark.parametrize("pieces", [["x STO", "P y", "STOPST"], list("x STOP ySTOPST")])
def test_one_that_passes_holds_back_the_same_text_and_lets_it_go(pieces):
    passing, stopping = StopMatcher(["STOP"], passing=True), StopMatcher(["STOP"])
    seen = []
    for piece in pieces:
        scan, other = passing.feed(piece), stopping.feed(piece)
        seen.append(scan.text)
        assert not scan.stopped
        if other.stopped:
            stopping = StopMatcher(["STOP"])
            assert scan.text.startswith(other.text + "STOP"[-len(piece) :]) or "STOP" in scan.text
    assert "".join(seen) + passing.flush() == "".join(pieces)


def test_a_stop_within_one_piece_cuts_before_it():
    assert run(["END"], "one END two") == (["one "], True)


def test_a_stop_split_over_tokens_is_neither_leaked_nor_missed():
    assert run(["STOP"], "a S", "T", "O", "P b") == (["a ", "", "", ""], True)


def test_only_a_true_prefix_of_a_stop_is_held_back():
    assert run(["STOP"], "SO") == (["SO", ""], False)
    assert run(["STOP"], "xST", "x") == (["x", "STx", ""], False)


def test_text_held_back_is_released_at_the_end():
    assert run(["STOP"], "xSTO") == (["x", "STO"], False)


def test_a_false_start_inside_a_stop_is_not_lost():
    assert run(["aab"], "a", "a", "a", "b") == (["", "", "a", ""], True)


def test_a_false_start_falls_back_as_far_as_it_must_and_no_further():
    assert run(["aabaaac"], "aabaaa", "baaac") == (["", "aaba"], True)


def test_a_stop_that_is_a_prefix_of_another_wins():
    assert run(["abcd", "abc"], "xab", "cd") == (["x", ""], True)


def test_the_stop_completed_first_wins_whatever_the_split():
    for pieces in (["abcd"], ["ab", "cd"], ["a", "b", "c", "d"]):
        seen, stopped = run(["abcd", "bc"], *pieces)
        assert ("".join(seen), stopped) == ("a", True)


def test_of_two_stops_completed_at_once_the_longest_is_cut():
    assert run(["cd", "abcd"], "xabcd") == (["x"], True)


@pytest.mark.parametrize("stop", ["。", "🚀", "\n\n"])
def test_stops_may_be_any_text(stop):
    seen, stopped = run([stop], "好", stop, "x")
    assert ("".join(seen), stopped) == ("好", True)


def test_a_repetitive_stop_costs_linear_time():
    matcher = StopMatcher(["a" * 1023 + "b"] * 16)
    start = time.process_time()
    for _ in range(2000):
        matcher.feed("aaaa")
    assert time.process_time() - start < 2
