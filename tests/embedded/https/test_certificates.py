"""Certificates and token: created once, private, renewed in time, replaced when unusable."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from datum_compute.embedded.https.certificates import Credentials

NOW = datetime(2026, 6, 1, tzinfo=UTC)
FILES = {"ca.crt", "ca.key", "server.crt", "server.key", "token"}


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_credentials_are_created_once_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "credentials"
    before = os.umask(0)
    try:
        first = Credentials.ensure(directory, NOW)
    finally:
        os.umask(before)
    made = contents(directory)
    assert made.keys() == FILES
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in directory.iterdir()} == {0o600}
    assert Credentials.ensure(directory, NOW) == first
    assert contents(directory) == made


def test_private_modes_are_restored(tmp_path: Path) -> None:
    Credentials.ensure(tmp_path, NOW)
    tmp_path.chmod(0o755)
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    Credentials.ensure(tmp_path, NOW)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_the_certificate_is_for_this_machine_and_signed_by_the_authority(tmp_path: Path) -> None:
    credentials = Credentials.ensure(tmp_path, NOW)
    authority = x509.load_pem_x509_certificate(credentials.authority_pem.encode())
    server = x509.load_pem_x509_certificate(credentials.certificate.read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    context = ssl.create_default_context(cadata=credentials.authority_pem)
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("days", "renewed"),
    [
        (0, set()),
        (334, set()),
        (336, {"server.crt", "server.key"}),
        (400, {"server.crt", "server.key"}),
        (3200, {"server.crt", "server.key"}),
        (3300, FILES - {"token"}),  # the authority must outlive what it signs
        (-1, FILES - {"token"}),  # created with a wrong clock
    ],
)
def test_certificates_are_renewed_before_they_expire(tmp_path: Path, days: int, renewed: set[str]) -> None:
    Credentials.ensure(tmp_path, NOW)
    before = contents(tmp_path)
    Credentials.ensure(tmp_path, NOW + timedelta(days=days))
    assert changed(before, contents(tmp_path)) == renewed


@pytest.mark.parametrize(
    ("file", "replaced"),
    [
        ("server.crt", {"server.crt", "server.key"}),
        ("server.key", {"server.crt", "server.key"}),
        ("ca.key", FILES - {"token"}),
        ("ca.crt", FILES - {"token"}),
    ],
)
@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_unusable_files_are_replaced(tmp_path: Path, file: str, replaced: set[str], content: bytes | None) -> None:
    Credentials.ensure(tmp_path, NOW)
    before = contents(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    Credentials.ensure(tmp_path, NOW)
    assert changed(before, contents(tmp_path)) == replaced


def test_files_of_two_directories_do_not_mix(tmp_path: Path) -> None:
    first, second = Credentials.ensure(tmp_path / "one", NOW), Credentials.ensure(tmp_path / "other", NOW)
    assert first.token != second.token
    second.certificate.replace(first.certificate)
    before = contents(tmp_path / "one")
    Credentials.ensure(tmp_path / "one", NOW)
    assert changed(before, contents(tmp_path / "one")) == {"server.crt", "server.key"}


def test_the_token_is_long_random_and_not_in_the_representation(tmp_path: Path) -> None:
    credentials = Credentials.ensure(tmp_path, NOW)
    assert len(credentials.token) >= 43
    assert credentials.token == (tmp_path / "token").read_text().strip()
    assert credentials.token not in repr(credentials)
    (tmp_path / "token").write_text("\n")
    assert len(Credentials.ensure(tmp_path, NOW).token) >= 43
