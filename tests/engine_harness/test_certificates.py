"""What the servers and clients of an engine show each other."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from engine.certificates import FRONT_PROXY, Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.ensure(tmp_path_factory.mktemp("engine") / "certificates")


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_one_authority_signs_every_certificate(certificates: Certificates) -> None:
    authority = read(certificates.authority)
    for name in ("server", "admin", FRONT_PROXY):
        read(certificates.certificate(name)).verify_directly_issued_by(authority)


def test_only_the_administrator_is_in_the_group_of_masters(certificates: Certificates) -> None:
    def organisations(name: str) -> list[str]:
        subject = read(certificates.certificate(name)).subject
        return [str(part.value) for part in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]

    assert organisations("admin") == ["system:masters"]
    assert organisations("server") == []
    assert organisations(FRONT_PROXY) == []


def test_a_key_fits_its_certificate(certificates: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in ("server", "admin", FRONT_PROXY):
        context.load_cert_chain(certificates.certificate(name), certificates.key(name))


def test_only_their_owner_can_read_the_files(certificates: Certificates) -> None:
    assert certificates.folder.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in certificates.folder.iterdir())


def test_certificates_are_created_once(certificates: Certificates) -> None:
    before = certificates.authority.read_bytes()
    assert Certificates.ensure(certificates.folder).authority.read_bytes() == before


def test_an_incomplete_set_is_created_again(tmp_path: Path) -> None:
    half = tmp_path / "certificates.new"
    half.mkdir()
    (half / "ca.crt").write_text("half")

    made = Certificates.ensure(tmp_path / "certificates")

    assert read(made.authority)
    assert not half.exists()
