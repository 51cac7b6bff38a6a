"""Stop strings over every split of the text."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.stops import StopMatcher
from tests.property.gateway_core.rules import cut_at_stop

TEXT = st.text(alphabet="ab🚀", max_size=9)
STOPS = st.lists(st.text(alphabet="ab🚀", min_size=1, max_size=4), max_size=4)


def splits(text):
    """Every way to cut `text` into pieces."""
    for cuts in itertools.product([False, True], repeat=max(0, len(text) - 1)):
        borders = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(text)]
        yield [text[a:b] for a, b in itertools.pairwise(borders)]


def run(stops, pieces):
    matcher = StopMatcher(stops)
    seen = ""
    for piece in pieces:
        scan = matcher.feed(piece)
        seen += scan.text
        if scan.stopped:
            return seen, True
    return seen + matcher.flush(), False


@given(TEXT, STOPS)
def test_every_split_of_the_text_gives_the_same_answer(text, stops):
    answer = cut_at_stop(text, stops)
    for pieces in splits(text):
        assert run(stops, pieces) == answer


@given(TEXT, STOPS)
def test_what_is_held_back_is_a_true_prefix_of_a_stop_and_the_longest_such_tail(text, stops):
    matcher = StopMatcher(stops)
    seen = fed = ""
    for character in text:
        scan = matcher.feed(character)
        if scan.stopped:
            return
        seen, fed = seen + scan.text, fed + character
        held = fed[len(seen) :]
        tails = [fed[i:] for i in range(len(fed) + 1)]
        prefixes = {stop[:n] for stop in stops for n in range(len(stop))} | {""}
        assert held == next(tail for tail in tails if tail in prefixes)
