"""What a key stands for: the content's digest, the entry's name, and each decision of a claim."""

import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.idempotency import (
    Claim,
    End,
    Entry,
    Follow,
    Patience,
    Read,
    Run,
    Write,
    content_digest,
    entry_name,
)
from services.gateway.core.openai_request import parse_openai
from services.gateway.core.validation import parse_generation

GOOD = {"model": "m", "prompt": "hello"}
MINE, THEIRS = 1, 2
NOW = 1000.0


def digest(**body):
    return content_digest(parse_generation(GOOD | body))


@pytest.mark.parametrize(
    "same",
    [
        {"deadlineMs": 5},
        {"temperature": 1},
        {"temperature": 1.0, "topP": 1, "n": 1, "stop": [], "ignoreEos": False, "seed": None},
    ],
)
def test_a_deadline_and_spelled_out_defaults_are_the_same_content(same):
    assert digest(**same) == digest()


def test_minus_zero_asks_for_nothing_else_than_zero():
    assert digest(temperature=-0.0) == digest(temperature=0)


OTHERS = [
    {"model": "m2"},
    {"prompt": "hello "},
    {"prompt": None, "promptTokenIds": [1]},
    {"prompt": None, "promptTokenIds": [1, 2]},
    {"prompt": None, "promptTokenIds": [12]},
    {"prompt": None, "messages": [{"role": "user", "content": "hello"}]},
    {"prompt": None, "messages": [{"role": "system", "content": "hello"}]},
    {"maxOutputTokens": 512},
    {"temperature": 0.5},
    {"topP": 0.5},
    {"topK": 1},
    {"minP": 0.5},
    {"seed": 0},
    {"seed": 1},
    {"stop": ["a", "b"]},
    {"stop": ["ab"]},
    {"n": 2},
    {"logprobs": 0},
    {"logprobs": 1},
    {"ignoreEos": True},
    {"resume": True},
    {"priority": "batch"},
]


def test_every_other_field_makes_another_content():
    digests = [digest(), *(digest(**other) for other in OTHERS)]
    assert len(set(digests)) == len(digests)


def test_every_field_of_a_request_is_in_the_digest_but_the_deadline():
    changed = {name for other in OTHERS for name in parse_generation(GOOD | other).model_fields_set}
    assert changed >= set(parse_generation(GOOD).model_dump()) - {"deadline_ms"}


def test_faces_and_the_wish_to_stream_make_no_difference():
    body = {"model": "m", "prompt": "hello", "max_tokens": 4}
    streamed = parse_openai(body | {"stream": True, "stream_options": {"include_usage": True}}, "completions")
    whole = parse_openai(body, "completions")
    assert content_digest(streamed.spec) == content_digest(whole.spec) == digest(maxOutputTokens=4)


def test_the_same_key_in_two_tenants_is_two_keys():
    assert entry_name("acme", "k") != entry_name("rival", "k")
    assert entry_name("ab", "c") != entry_name("a", "bc")


def test_an_entrys_name_is_a_valid_bucket_key_that_tells_nothing():
    name = entry_name("acme", "user@example.org")
    assert len(name) == 64
    assert set(name) <= set("0123456789abcdef")


CONTENT, OTHER = b"c" * 32, b"o" * 32


@pytest.fixture
def claim():
    ids = iter(range(MINE, 100, 10))
    return Claim(CONTENT, lambda: next(ids), Patience(claim_s=10.0, resubmit_s=5.0))


def entry(request_id=THEIRS, *, accepted=True, content=CONTENT, created=NOW):
    return Entry(request_id, content, accepted, created)


def test_the_first_request_creates_runs_confirms_and_only_then_is_told(claim):
    assert claim.begin(NOW) == Write(entry(MINE, accepted=False), 0)
    assert claim.written(5) == Run(MINE)
    assert claim.admitted() == Write(entry(MINE), 5)
    assert claim.written(6) is End.CONFIRMED


def test_a_refused_request_frees_its_key(claim):
    claim.begin(NOW)
    claim.written(5)
    assert claim.refused() == Write(None, 5)
    assert claim.written(6) is End.REFUSED


def test_a_request_that_fails_after_it_was_confirmed_frees_its_key(claim):
    claim.begin(NOW)
    claim.written(5)
    claim.admitted()
    claim.written(6)
    assert claim.refused() == Write(None, 6)


def test_a_refused_request_leaves_alone_what_another_made_of_the_key(claim):
    claim.begin(NOW)
    claim.written(5)
    claim.refused()
    assert claim.beaten() == Read()
    assert claim.found(entry(), 7, NOW) is End.REFUSED


def behind(claim, **what):
    """A claim that was not the first; the step on finding the first one's entry."""
    claim.begin(NOW)
    assert claim.beaten() == Read()
    return claim.found(entry(**what), 5, NOW)


def test_a_repeated_request_follows_the_first(claim):
    assert behind(claim) == Follow(THEIRS)
    assert claim.attached() is End.CONFIRMED


def test_another_content_under_the_key_is_a_conflict(claim):
    with pytest.raises(ServiceError) as caught:
        behind(claim, content=OTHER)
    assert (caught.value.code, caught.value.reason) == (Code.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT")


def test_who_follows_a_generation_that_is_not_confirmed_confirms_it_first(claim):
    assert behind(claim, accepted=False) == Follow(THEIRS)
    assert claim.attached() == Write(entry(), 5)
    assert claim.written(6) is End.CONFIRMED


def test_who_follows_goes_on_when_the_first_confirmed_meanwhile(claim):
    behind(claim, accepted=False)
    claim.attached()
    assert claim.beaten() == Read()
    assert claim.found(entry(), 6, NOW) is End.CONFIRMED


def test_who_follows_turns_to_another_that_has_the_key_by_now(claim):
    behind(claim, accepted=False)
    claim.attached()
    claim.beaten()
    assert claim.found(entry(33), 8, NOW) == Follow(33)


def test_a_key_that_was_freed_meanwhile_is_claimed(claim):
    behind(claim, accepted=False)
    claim.missing(NOW)
    assert claim.found(None, 6, NOW + 1) == Write(Entry(11, CONTENT, accepted=False, created=NOW + 1), 6)


def test_a_claim_on_its_way_is_waited_for_in_growing_steps_and_then_replaced(claim):
    behind(claim, accepted=False)
    now, pauses = NOW, []
    while isinstance(step := claim.missing(now), Read):
        pauses.append(step.pause_s)
        now += step.pause_s
        assert claim.found(entry(accepted=False), 5, now) == Follow(THEIRS)
    assert step == Write(Entry(11, CONTENT, accepted=False, created=now), 5)
    assert 10 <= now - NOW < 10.5
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.05
    assert pauses[-1] <= 0.25


def test_a_claim_left_behind_is_replaced_at_once(claim):
    behind(claim, accepted=False, created=NOW - 11)
    assert isinstance(claim.missing(NOW), Write)


def test_a_claim_from_a_clock_that_is_ahead_is_not_waited_for_longer(claim):
    behind(claim, accepted=False, created=NOW + 3600)
    assert isinstance(claim.missing(NOW + 9), Read)
    assert isinstance(claim.missing(NOW + 10), Write)


def test_an_accepted_generation_that_is_gone_is_expired_and_never_made_again(claim):
    behind(claim)
    assert isinstance(claim.missing(NOW), Read), "a lost scheduler's requests are submitted again"
    claim.found(entry(), 5, NOW + 1)
    with pytest.raises(ServiceError) as caught:
        claim.missing(NOW + 5)
    assert (caught.value.code, caught.value.reason) == (Code.FAILED_PRECONDITION, "RESULT_EXPIRED")


def test_a_generation_that_was_given_up_is_made_again(claim):
    behind(claim)
    assert claim.given_up(NOW) == Write(Entry(11, CONTENT, accepted=False, created=NOW), 5)


def test_a_confirmation_that_another_gave_counts(claim):
    claim.begin(NOW)
    claim.written(5)
    claim.admitted()
    assert claim.beaten() == Read()
    assert claim.found(entry(MINE), 6, NOW) is End.CONFIRMED


def test_a_lost_key_ends_the_generation_and_its_caller_follows_the_other(claim):
    claim.begin(NOW)
    claim.written(5)
    claim.admitted()
    claim.beaten()
    assert claim.found(entry(THEIRS), 7, NOW) is End.LOST
    assert claim.found(entry(THEIRS), 7, NOW) == Follow(THEIRS)


def test_an_entry_that_vanished_is_confirmed_anew(claim):
    claim.begin(NOW)
    claim.written(5)
    claim.admitted()
    claim.beaten()
    assert claim.found(None, 9, NOW) == Write(entry(MINE), 9)
