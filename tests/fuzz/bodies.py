"""Bodies that a small model can serve: these get past validation, with every field at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

    Body = SearchStrategy[dict[str, Any]]

MODEL = "tiny"
VOCABULARY = 384
# Few, so that requests meet one another's.
KEYS = st.sampled_from(["a", "b", "c", "!~"])
_WORDS = st.lists(st.sampled_from([" t1", " t37", " t200", "t5"]), min_size=1, max_size=20).map("".join)
TEXT = _WORDS | st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
STOPS = st.lists(st.text(min_size=1, max_size=4), max_size=4)
TOKEN_IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40)
_MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": TEXT}),
    min_size=1,
    max_size=3,
)
_LOGPROBS = st.none() | st.integers(0, 20)
_SAMPLING: dict[str, SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.0, 1e-9, 2]) | st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.sampled_from([0, 1, VOCABULARY, 2**31 - 1]) | st.integers(0, 50),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "n": st.integers(1, 3),
    "ignore_eos": st.booleans(),
    "priority": st.sampled_from(["interactive", "standard", "batch"]),
    "deadline_ms": st.sampled_from([1, 5_000, 60_000, 60_000, 2**31 - 1]),
    "resume": st.booleans(),
}


def snake(**prompt: SearchStrategy[Any]) -> Body:
    """A generation by its canonical names."""
    more = {"stop": STOPS, "logprobs": _LOGPROBS}
    needed = {"model": st.just(MODEL), "max_output_tokens": st.integers(1, 6), **prompt}
    return st.fixed_dictionaries(needed, optional=_SAMPLING | more)


def generations() -> Body:
    """For gRPC."""
    return snake(prompt=TEXT) | snake(prompt_token_ids=TOKEN_IDS) | snake(messages=_MESSAGES)


def native() -> Body:
    """For /v1/generations."""
    return generations().map(_camel)


def completions() -> Body:
    """For /v1/completions."""
    prompt = TEXT | TOKEN_IDS | st.lists(TEXT, min_size=1, max_size=1)
    return _openai({"prompt": prompt}, {"logprobs": _LOGPROBS})


def chats() -> Body:
    """For /v1/chat/completions."""
    parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), min_size=1, max_size=2)
    turn = {"role": st.sampled_from(["developer", "user"]), "content": TEXT | parts}
    talk = {"messages": st.lists(st.fixed_dictionaries(turn), min_size=1, max_size=3)}
    with_logprobs = _openai(talk, {"logprobs": st.just(value=True), "top_logprobs": st.integers(0, 20)})
    return _openai(talk, {"user": TEXT}) | with_logprobs


def _openai(prompt: dict[str, Any], more: dict[str, Any]) -> Body:
    optional = (
        _SAMPLING
        | more
        | {
            "stop": STOPS | st.text(min_size=1, max_size=4),
            "top_k": st.integers(-1, 50),
            "stream": st.booleans(),
            "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
        }
    )
    needed = {"model": st.just(MODEL), "max_tokens": st.integers(1, 6), **prompt}
    return st.fixed_dictionaries(needed, optional=optional)


def _camel(body: dict[str, Any]) -> dict[str, Any]:
    return {name[0] + name.title().replace("_", "")[1:]: value for name, value in body.items()}


LIVELY: dict[str, Callable[[], Body]] = {
    "/v1/generations": native,
    "/v1/completions": completions,
    "/v1/chat/completions": chats,
}
