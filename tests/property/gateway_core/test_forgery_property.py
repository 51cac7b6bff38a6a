"""No conversation can write a special token."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.spec import ChatMessage
from tests.unit.gateway_core.toy import SPECIALS, toy

PIECES = [
    *SPECIALS,
    "<|im_",
    "end|>",
    "im_start|>",
    "<",
    "\ue000",
    "\ue001",
    "0",
    ":",
    "\ue0000:",
    "\n",
    "hi",
    "你",
]
CONTENT = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@given(st.lists(CONTENT, min_size=1, max_size=3))
def test_special_tokens_come_from_the_template_alone_and_text_is_kept(contents):
    tokenizer = toy(context_length=4096)
    ids = tokenizer.encode_chat([ChatMessage(role="user", content=content) for content in contents])
    turns = len(contents)
    assert [ids.count(special) for special in range(3)] == [0, turns + 1, turns]
    assert tokenizer.decode(ids) == "".join(f"user\n{content}\n" for content in contents) + "assistant\n"
