import datetime
import stat

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from kit import tls
from tests.support.certificates import Authority
from tokenloom import certificates
from tokenloom.cli import main

SERVICES = {"scheduler", "gateway", "worker", "usage", "registry"}


def certs(*arguments):
    return CliRunner().invoke(main, ["certs", *map(str, arguments)])


def read(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path):
    found = read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def test_every_role_has_a_certificate_that_the_authority_vouches_for(tmp_path):
    result = certs("--out", tmp_path / "new" / "certs", "--days", 30)
    assert result.exit_code == 0, result.output
    directory = tmp_path / "new" / "certs"
    roles = SERVICES | {"operator", "nats", "edge"}
    assert {path.stem for path in directory.glob("*.pem")} == roles | {"ca"}
    assert {line.rpartition("/")[2] for line in result.output.splitlines()} == {f"{r}.pem" for r in roles}
    for role in roles:
        path = directory / f"{role}.pem"
        read(path).verify_directly_issued_by(read(directory / "ca.pem"))
        assert tls.peer_name(role) in names(path)
        left = read(path).not_valid_after_utc - datetime.datetime.now(datetime.UTC)
        assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


def test_keys_are_for_their_owner_only(tmp_path):
    certs("--out", tmp_path / "certs")
    keys = list((tmp_path / "certs").glob("*.key"))
    assert len(keys) == 9
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700


def test_a_service_vouches_for_nothing_but_itself(tmp_path):
    certs("--out", tmp_path)
    for role in SERVICES:
        path = tmp_path / f"{role}.pem"
        assert names(path) == {tls.peer_name(role)}
        extensions = read(path).extensions
        assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


@pytest.mark.parametrize("role", ["nats", "edge"])
def test_what_callers_reach_cannot_call_services(tmp_path, role):
    certs("--out", tmp_path)
    usage = read(tmp_path / f"{role}.pem").extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH not in usage


def test_a_second_run_keeps_the_authority_and_the_hosts_and_renews_the_rest(tmp_path):
    certs("--out", tmp_path, "--host", "llm.example.com", "--host", "10.0.0.7")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert certs("--out", tmp_path).exit_code == 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] == after[name]} == {"ca.pem", "ca.key"}
    for role in ("edge", "nats"):
        assert {"llm.example.com", "10.0.0.7", "localhost", "127.0.0.1"} <= names(tmp_path / f"{role}.pem")
    tls.check_identity(Authority.at(tmp_path).identity("worker"), ca="CA", cert="CERT", key="KEY")


def test_hosts_that_are_given_replace_those_before(tmp_path):
    certs("--out", tmp_path, "--host", "old.example.com")
    certs("--out", tmp_path, "--host", "new.example.com")
    assert "new.example.com" in names(tmp_path / "edge.pem")
    assert "old.example.com" not in names(tmp_path / "edge.pem")


def test_a_certificate_does_not_outlive_its_authority(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "CA_DAYS", 10)
    certificates.make(tmp_path, days=30)
    assert read(tmp_path / "edge.pem").not_valid_after_utc == read(tmp_path / "ca.pem").not_valid_after_utc


@pytest.mark.parametrize("lost", ["ca.key", "ca.pem"])
def test_half_an_authority_is_never_replaced(tmp_path, lost):
    certs("--out", tmp_path)
    (tmp_path / lost).unlink()
    result = certs("--out", tmp_path)
    assert result.exit_code == 1
    assert "without its other half" in result.output
    assert not (tmp_path / lost).exists()


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "edge.pem"])
def test_a_damaged_file_is_said_in_one_line(tmp_path, name):
    certs("--out", tmp_path)
    (tmp_path / name).write_text("damaged")
    result = certs("--out", tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert name in result.output
    assert len(result.output.splitlines()) == 1


def test_the_key_of_another_authority_is_refused(tmp_path):
    certs("--out", tmp_path / "one")
    certs("--out", tmp_path / "two")
    (tmp_path / "one" / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    assert "is not the key of" in certs("--out", tmp_path / "one").output


def test_an_expired_authority_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "CA_DAYS", 0)
    certificates.make(tmp_path, days=1)
    assert "has expired" in certs("--out", tmp_path).output


@pytest.mark.parametrize("arguments", [("--host", "bücher.example"), ("--days", 0), ("--days", 10**6)])
def test_what_cannot_be_a_certificate_is_refused(tmp_path, arguments):
    result = certs("--out", tmp_path, *arguments)
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    result = certs("--out", tmp_path / "file" / "certs")
    assert result.exit_code == 1
    assert str(tmp_path / "file") in result.output
