"""Certificates that a program issues for itself satisfy TLS libraries."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from datum_compute.kube.authority import CLIENT, SERVER, Pair, issue, new_authority

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
NAME = x509.DNSName("localhost")


def verify_server(server: Pair, authority: Pair, at: datetime, name: str = "localhost") -> None:
    policy = PolicyBuilder().store(Store([authority.certificate])).time(at)
    policy.build_server_verifier(x509.DNSName(name)).verify(server.certificate, [])


@pytest.fixture
def authority() -> Pair:
    return new_authority("the authority", NOW, 100)


def test_a_server_is_trusted_for_its_names_and_its_days(authority: Pair) -> None:
    server = issue(authority, "localhost", NOW, 10, purposes=[SERVER], names=[NAME])
    verify_server(server, authority, NOW)
    for at, name in ((NOW, "other.example"), (NOW + timedelta(days=11), "localhost")):
        with pytest.raises(VerificationError):
            verify_server(server, authority, at, name)


def test_trust_in_an_authority_does_not_extend_to_another_of_its_name(authority: Pair) -> None:
    server = issue(new_authority("the authority", NOW, 100), "localhost", NOW, 10, purposes=[SERVER], names=[NAME])
    with pytest.raises(VerificationError):
        verify_server(server, authority, NOW)


def test_a_client_certificate_is_not_a_server_certificate(authority: Pair) -> None:
    client = issue(authority, "ada", NOW, 10, purposes=[CLIENT], organisation="engineers")
    client.certificate.verify_directly_issued_by(authority.certificate)
    subject = client.certificate.subject
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ada"]
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["engineers"]
    with pytest.raises(VerificationError):
        verify_server(client, authority, NOW)


def test_the_files_hold_what_belongs_together(authority: Pair) -> None:
    key = load_pem_private_key(authority.key_pem, password=None)
    assert key.public_key() == x509.load_pem_x509_certificate(authority.certificate_pem).public_key()
