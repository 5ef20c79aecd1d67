"""The certificates of one engine: an authority, a server, two clients, and the key of service accounts.

Entry point: `Certificates`. They are for loopback and for as long as the engine's folder lives; nothing renews them.
"""

import ipaddress
import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from datum_compute.kube.authority import CLIENT, SERVER, issue, new_authority, new_key, private_pem
from datum_compute.kube.files import write_private

FRONT_PROXY = "front-proxy-client"
_DAYS = 3650
_SERVER_NAMES = (
    x509.DNSName("localhost"),
    x509.DNSName("karmada-aggregated-apiserver.karmada-system.svc"),  # by which the hub calls it
    x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
)


class Certificates(Struct, frozen=True):
    """One folder of PEM files, readable only by their owner."""

    folder: Path

    @classmethod
    def ensure(cls, folder: Path) -> "Certificates":
        """Creates all of them in one step, unless they exist."""
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


def _write(folder: Path, now: datetime) -> None:
    authority = new_authority("datum-compute engine", now, _DAYS)
    signed = partial(issue, authority, now=now, days=_DAYS)
    pairs = {
        "ca": authority,
        # etcd calls itself with its server certificate, so that one is for both ends.
        "server": signed("localhost", purposes=[SERVER, CLIENT], names=_SERVER_NAMES),
        "admin": signed("engine-admin", purposes=[CLIENT], organisation="system:masters"),
        FRONT_PROXY: signed(FRONT_PROXY, purposes=[CLIENT]),
    }
    for name, pair in pairs.items():
        write_private(folder / f"{name}.crt", pair.certificate_pem)
        write_private(folder / f"{name}.key", pair.key_pem)
    tokens = new_key()
    write_private(folder / "service-account.key", private_pem(tokens))
    public = tokens.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_private(folder / "service-account.pub", public)
