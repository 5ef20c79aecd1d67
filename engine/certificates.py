"""The certificates of one engine: an authority, a server, two clients, and the key of service accounts.

Entry point: `Certificates`. They are for loopback and for as long as the engine's folder lives; nothing renews them.
"""

import ipaddress
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from datum_compute.kube.files import write_private

FRONT_PROXY = "front-proxy-client"
_DAYS = 3650
_SERVER_NAMES = (
    x509.DNSName("localhost"),
    x509.DNSName("karmada-aggregated-apiserver.karmada-system.svc"),  # by which the hub calls it
    x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
)


class Certificates(Struct, frozen=True):
    """One folder of PEM files, each only its owner's to read."""

    folder: Path

    @classmethod
    def ensure(cls, folder: Path) -> "Certificates":
        """Makes all of them in one step, or none when they are there."""
        if not folder.is_dir():
            fresh = folder.with_name(f"{folder.name}.new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700, parents=True)
            _write(fresh, datetime.now(UTC))
            fresh.rename(folder)
        return cls(folder)

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    @property
    def authority(self) -> Path:
        return self.certificate("ca")

    @property
    def service_account_public(self) -> Path:
        return self.folder / "service-account.pub"

    @property
    def service_account_private(self) -> Path:
        return self.key("service-account")


class _Pair(Struct, frozen=True):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _write(folder: Path, now: datetime) -> None:
    authority = _authority(now)
    pairs = {
        "ca": authority,
        "server": _signed(authority, now, "localhost", "", ExtendedKeyUsageOID.SERVER_AUTH, _SERVER_NAMES),
        "admin": _signed(authority, now, "engine-admin", "system:masters", ExtendedKeyUsageOID.CLIENT_AUTH),
        FRONT_PROXY: _signed(authority, now, FRONT_PROXY, "", ExtendedKeyUsageOID.CLIENT_AUTH),
    }
    for name, pair in pairs.items():
        write_private(folder / f"{name}.crt", pair.certificate.public_bytes(Encoding.PEM))
        write_private(folder / f"{name}.key", _private_pem(pair.key))
    tokens = ec.generate_private_key(ec.SECP256R1())
    write_private(folder / "service-account.key", _private_pem(tokens))
    public = tokens.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_private(folder / "service-account.pub", public)


def _authority(now: datetime) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("datum-compute engine", "")
    certificate = (
        _certificate(name, name, key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return _Pair(certificate, key)


def _signed(
    authority: _Pair,
    now: datetime,
    common: str,
    organisation: str,
    purpose: x509.ObjectIdentifier,
    names: Sequence[x509.GeneralName] = (),
) -> _Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    # etcd calls itself with its server certificate, so that one is for both ends.
    purposes = [purpose] if not names else [purpose, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _certificate(_name(common, organisation), authority.certificate.subject, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _Pair(builder.sign(authority.key, SHA256()), key)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _name(common: str, organisation: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organisation:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    return x509.Name(attributes)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
