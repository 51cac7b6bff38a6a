import pytest

from kit.errors import Code, ServiceError
from services.gateway.core.ids import MAX_REQUEST_ID, Key, format_id, parse_id, parse_key, parse_reference


@pytest.mark.parametrize("number", [1, 0xABC, 2**62, MAX_REQUEST_ID])
def test_a_public_id_gives_its_number_back(number):
    assert parse_id(format_id(number)) == number


def test_the_public_form_is_gen_and_sixteen_hex_digits():
    assert format_id(0xABC) == "gen-0000000000000abc"


@pytest.mark.parametrize("number", [0, -1, 2**63])
def test_only_positive_63_bit_numbers_have_a_public_form(number):
    with pytest.raises(ValueError, match="63-bit"):
        format_id(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gen-",
        "abc",
        "gen-abc",
        "gen-0000000000000000",
        "gen-8000000000000000",
        "gen-ffffffffffffffff",
        "gen-0000000000000ABC",
        "gen-0000000000000abc0",
        "gen-0000000000000abc\n",
        " gen-0000000000000abc",
        "GEN-0000000000000abc",
        "gen-000000000000_abc",
        "gen-00000000000000\uff11\uff12",
        "key:gen-0000000000000abc",
    ],
)
def test_a_malformed_id_is_not_found_and_never_a_prefix_match(text):
    with pytest.raises(ServiceError) as caught:
        parse_id(text)
    assert (caught.value.code, caught.value.reason) == (Code.NOT_FOUND, "NOT_FOUND")


@pytest.mark.parametrize("key", ["a", "gen-8", "!~", "key:x", "a/b?c=%2F", "z" * 255])
def test_a_key_names_a_generation_by_its_prefix(key):
    assert parse_key(key, "Idempotency-Key") == parse_reference(f"key:{key}") == Key(key)


def test_a_reference_without_the_prefix_is_the_servers_id():
    assert parse_reference("gen-0000000000000abc") == 0xABC


BAD_KEYS = ["", " ", "a b", "a\n", "\ta", "\x7f", "caf\u00e9", "z" * 256, "\ud800"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_malformed_key_is_refused_by_the_field_that_gave_it(key):
    with pytest.raises(ServiceError) as caught:
        parse_key(key, "Idempotency-Key")
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "Idempotency-Key")


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_malformed_key_names_no_generation(key):
    with pytest.raises(ServiceError) as caught:
        parse_reference(f"key:{key}")
    assert (caught.value.code, caught.value.reason) == (Code.NOT_FOUND, "NOT_FOUND")
