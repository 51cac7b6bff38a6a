"""Half a configuration, or one that cannot work, is refused at start by the variable's name."""

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from kit import tls
from kit.config import ConfigError, ServiceConfig, load
from services.gateway.config import GatewayConfig
from tests.support.certificates import Authority
from tokenloom import certificates

CA, CERT, KEY = "TOKENLOOM_TLS_CA", "TOKENLOOM_TLS_CERT", "TOKENLOOM_TLS_KEY"
PUBLIC_CERT, PUBLIC_KEY = "TOKENLOOM_PUBLIC_TLS_CERT", "TOKENLOOM_PUBLIC_TLS_KEY"
BASE = {"TOKENLOOM_NATS_URL": "nats://127.0.0.1:4222", "TOKENLOOM_STATE_DIR": "/tmp/state"}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "certs")


@pytest.fixture
def settings(monkeypatch, authority):
    """Set a service's environment: whole, but for what a test changes."""

    def apply(config=ServiceConfig, **changed):
        for name, value in {**BASE, **authority.settings("usage"), **changed}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, str(value))
        return load(config)

    return apply


def refused(settings, **changed):
    with pytest.raises(ConfigError) as caught:
        settings(**changed)
    return caught.value.message


def test_a_whole_identity_is_taken(settings, authority):
    identity = settings().tls
    assert identity.files == (*authority.pair("usage").files, authority.ca)
    assert identity.require_client_cert
    assert settings(**{CA: None, CERT: None, KEY: None}).tls is None


@pytest.mark.parametrize("missing", [CA, CERT, KEY])
def test_what_is_missing_beside_the_others_is_named(settings, missing):
    message = refused(settings, **{missing: None})
    assert f"needs {missing} beside it" in message
    assert not message.startswith("TOKENLOOM_:")


@pytest.mark.parametrize("variable", [CA, CERT, KEY])
@pytest.mark.parametrize("fault", ["absent", "a directory", "empty", "no PEM", "cut short"])
def test_a_file_that_cannot_be_used_is_named_with_its_variable(
    settings, authority, tmp_path, variable, fault
):
    path = tmp_path / "damaged"
    whole = Path(authority.settings("usage")[variable]).read_text()
    match fault:
        case "a directory":
            path.mkdir()
        case "empty":
            path.touch()
        case "no PEM":
            path.write_text("not a certificate")
        case "cut short":
            path.write_text(whole[: len(whole) // 2])
    message = refused(settings, **{variable: path})
    assert message.startswith(f"{variable}: {path} ")
    assert whole.splitlines()[1] not in message


def test_a_key_of_another_certificate_is_named(settings, authority):
    key = authority.pair("worker").key
    assert refused(settings, **{KEY: key}).startswith(f"{KEY}: {key} is not the key of {CERT}")


def test_a_key_with_a_passphrase_is_refused_without_asking_for_it(settings, authority, tmp_path):
    locked = tmp_path / "locked.key"
    whole = authority.pair("usage").key
    command = ["openssl", "pkey", "-in", whole, "-aes256", "-passout", "pass:secret", "-out", locked]
    if not shutil.which("openssl"):
        pytest.skip("needs openssl to lock a key")
    subprocess.run(command, check=True, capture_output=True)
    assert "without a passphrase" in refused(settings, **{KEY: locked})


def test_an_authority_that_does_not_vouch_for_the_certificate_is_refused(settings, tmp_path):
    other = Authority(tmp_path / "other")
    assert refused(settings, **{CA: other.ca}).startswith(f"{CERT}: {CA} does not vouch for ")


def test_an_expired_certificate_is_refused(settings, authority, monkeypatch):
    monkeypatch.setattr(certificates, "_BACKDATED", certificates.datetime.timedelta(days=3))
    certificates.make(authority.directory, days=-1)
    message = refused(settings)
    assert message.startswith(f"{CERT}: ")
    assert "expired" in message


@pytest.mark.parametrize("missing", [PUBLIC_CERT, PUBLIC_KEY])
def test_half_a_public_certificate_is_refused(settings, authority, missing):
    edge = authority.pair("edge")
    whole = {
        "TOKENLOOM_SCHEDULER_TARGET": "127.0.0.1:1",
        "TOKENLOOM_USAGE_TARGET": "127.0.0.1:2",
        PUBLIC_CERT: edge.cert,
        PUBLIC_KEY: edge.key,
    }
    assert settings(GatewayConfig, **whole).public_tls == edge
    assert f"needs {missing} beside it" in refused(settings, config=GatewayConfig, **{**whole, missing: None})
    other = authority.pair("nats").key
    message = refused(settings, config=GatewayConfig, **{**whole, PUBLIC_KEY: other})
    assert message.startswith(f"{PUBLIC_KEY}: {other} is not the key")


def test_an_expired_public_certificate_is_refused(settings, authority, monkeypatch):
    monkeypatch.setattr(certificates, "_BACKDATED", certificates.datetime.timedelta(days=3))
    certificates.make(authority.directory / "public", days=-1)
    pair = Authority.at(authority.directory / "public").pair("edge")
    changed = {PUBLIC_CERT: pair.cert, PUBLIC_KEY: pair.key, "TOKENLOOM_USAGE_TARGET": "127.0.0.1:2"}
    message = refused(settings, config=GatewayConfig, **changed, TOKENLOOM_SCHEDULER_TARGET="127.0.0.1:1")
    assert message == f"{PUBLIC_CERT}: {pair.cert} cannot be shown to anyone: certificate has expired"


def test_an_authority_for_nats_needs_a_url_that_uses_it(settings, authority):
    assert "TOKENLOOM_NATS_CA needs a tls:// URL" in refused(settings, TOKENLOOM_NATS_CA=authority.ca)
    config = settings(TOKENLOOM_NATS_CA=authority.ca, TOKENLOOM_NATS_URL="tls://nats:4222")
    assert config.nats_tls.verify_mode is ssl.CERT_REQUIRED
    assert config.nats_tls.check_hostname


def test_a_service_says_what_is_wrong_in_one_line_and_exits_with_2(authority, tmp_path):
    env = {**BASE, **authority.settings("worker"), "TOKENLOOM_MODELS_DIR": str(tmp_path)}
    env[KEY] = str(tmp_path / "nowhere.key")
    command = [sys.executable, "-m", "services.registry"]
    result = subprocess.run(command, env={**env, "PATH": ""}, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == f"INVALID_CONFIG: {KEY}: {env[KEY]} cannot be read: No such file or directory\n"


def test_the_names_of_a_certificate_are_read_whoever_vouches_for_it(authority):
    assert tls.names(authority.pair("worker")) == ["worker.tokenloom.internal"]
    assert "localhost" in tls.names(authority.pair("edge"))
