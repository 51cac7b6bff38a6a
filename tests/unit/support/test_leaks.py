"""The net itself: a canary is found however it is spelled, and nothing else is."""

import base64
import json
import secrets
import struct
import urllib.parse

import pytest

from tests.support import leaks
from tests.support.leaks import Canaries, Leak
from tokenloom.api.inference.v1 import inference_pb2 as pb

PROMPT = 'Meet me, "old friend",\nbeneath the crooked elm at ten: café Ω, 100 % certain.'
IDS = [504, 2613, 28, 284, 1423, 30, 17, 9288, 400, 31007, 12, 88, 2041, 339, 4052, 6, 719]


def spellings():
    plain = PROMPT.encode()
    return {
        "plain": plain,
        "a part": plain[7:44],
        "json": json.dumps({"prompt": PROMPT}).encode(),
        "json utf-8": json.dumps(PROMPT, ensure_ascii=False).encode(),
        "repr": repr([PROMPT]).encode(),
        "url": urllib.parse.urlencode({"q": PROMPT}).encode(),
        "hex": plain.hex().encode(),
        **{f"base64 at {at}": base64.b64encode(b"x" * at + plain) for at in range(3)},
        "a proto": pb.GenerateRequest(model="m", prompt=PROMPT).SerializeToString(),
    }


@pytest.mark.parametrize("spelling", spellings())
def test_a_text_is_found_however_it_is_spelled(spelling):
    canaries = Canaries(key=[secrets.token_hex(20)], prompt=["another prompt of enough length", PROMPT])
    found = canaries.find(b"\x00" * 13 + spellings()[spelling] + b"tail", "log")
    assert found == [Leak("log", "prompt[1]")]


@pytest.mark.parametrize(
    "spelling",
    [
        f"token_ids={IDS}".encode(),
        json.dumps(IDS, separators=(",", ":")).encode(),
        struct.pack(f"<{len(IDS)}i", *IDS),
        struct.pack(f"<{len(IDS)}q", *IDS),
        pb.TokenIds(ids=IDS).SerializeToString(),
    ],
)
def test_token_ids_are_found_packed_and_listed(spelling):
    assert Canaries(tokens=[IDS]).find(spelling, "state") == [Leak("state", "tokens[0]")]


def test_a_canary_across_the_border_of_two_blocks_is_found(monkeypatch):
    monkeypatch.setattr(leaks, "_BLOCK", 64)
    canaries = Canaries(prompt=["the only text that counts here"])
    for before in range(130):
        assert canaries.find(b"." * before + b"the only text that counts here" + b"." * 70, "log")


def test_what_is_no_canary_is_not_found():
    canaries = Canaries(prompt=[PROMPT], key=["tl-" + secrets.token_hex(20)], tokens=[IDS])
    assert canaries.find(secrets.token_bytes(200_000), "noise") == []
    assert canaries.find(PROMPT[:20].encode() + b"#" + PROMPT[20:40].encode(), "log") == []
    assert canaries.find(b"", "empty") == []


@pytest.mark.parametrize("text", ["", "short", "a" * 400])
def test_a_canary_that_chance_would_find_is_refused(text):
    assert not leaks.searchable(text)
    with pytest.raises(ValueError, match=r"prompt\[0\] is too short"):
        Canaries(prompt=[text])


def test_private_files_may_hold_secrets_but_not_be_read_by_others(tmp_path):
    key = "tl-" + secrets.token_hex(20)
    for name in ("secrets.json", "state/outbox"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"api_key": key}))
    (tmp_path / "secrets.json").chmod(0o600)
    canaries = Canaries(key=[key])
    assert leaks.in_files(tmp_path, canaries) == [Leak(str(tmp_path / "state/outbox"), "key[0]")]
    (tmp_path / "secrets.json").chmod(0o640)
    assert Leak(str(tmp_path / "secrets.json"), "anything") in leaks.in_files(tmp_path, canaries)
