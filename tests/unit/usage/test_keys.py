from services.usage.core.keys import Key, changes, digest


def test_the_digest_is_sha256_in_hexadecimal():
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_only_what_differs_is_published():
    kept, new, revoked = Key("a"), Key("b"), Key("c", revoked=True)
    published = {"1": kept, "3": Key("c"), "4": Key("gone")}
    wanted = {"1": kept, "2": new, "3": revoked}
    assert changes(wanted, published) == {"2": new, "3": revoked, "4": None}
    assert changes(wanted, wanted) == {}
