import pytest

from services.worker.core.addresses import advertised


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        ("0.0.0.0:9000", "host-7:9000"),
        ("[::]:9000", "host-7:9000"),
        ("10.0.0.3:9000", "10.0.0.3:9000"),
        ("unix:/run/worker.sock", "unix:/run/worker.sock"),
    ],
)
def test_an_address_of_every_interface_is_told_under_the_hosts_name(bound, told):
    assert advertised(bound, "host-7") == told
