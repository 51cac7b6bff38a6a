import pytest

from kit.errors import Code, ServiceError
from services.usage.core.listing import MAX_PAGE_SIZE, Position, page_token, query

FINE = {
    "tenant_id": "acme",
    "request_id": 0,
    "start_us": None,
    "end_us": None,
    "page_size": 0,
    "page_token": "",
}


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tenant_id", {"tenant_id": ""}),
        ("request_id", {"request_id": -1}),
        ("page_size", {"page_size": -1}),
        ("page_size", {"page_size": MAX_PAGE_SIZE + 1}),
        ("end_time", {"start_us": 2, "end_us": 1}),
        ("page_token", {"page_token": "!"}),
        ("page_token", {"page_token": "AAAA"}),
        ("page_token", {"page_token": "ключ"}),
        ("page_token", {"page_token": "A" * 100_000}),
    ],
)
def test_a_bad_field_is_refused_by_name(field, change):
    with pytest.raises(ServiceError) as refusal:
        query(**FINE | change)
    assert (refusal.value.code, refusal.value.field) == (Code.INVALID_ARGUMENT, field)


@pytest.mark.parametrize("position", [Position(0, 1), Position(1_700_000_000_000_000, 2**63 - 1)])
def test_a_page_token_leads_back_to_its_position(position):
    assert query(**FINE | {"page_token": page_token(position)}).after == position
