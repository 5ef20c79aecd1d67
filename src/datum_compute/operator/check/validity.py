"""How long certificates and tokens are valid, without trusting them. Entry points: `of_certificate`, `of_token`."""

import base64
import ssl
from datetime import UTC, datetime, timedelta

import msgspec
from cryptography import x509
from msgspec import Struct

from datum_compute.kube.meta import timestamp

_SOON = timedelta(days=7)


class Validity(Struct, frozen=True):
    """`subject` is what it is, as a sentence names it: `the token`."""

    subject: str
    end: datetime
    start: datetime | None = None
    names: tuple[str, ...] = ()  # of the server that presents the certificate
    renewed: bool = False  # by somebody else, before it expires

    def is_over(self, now: datetime) -> bool:
        return now >= self.end

    def ends_soon(self, now: datetime) -> bool:
        """Whether somebody has to act: less than a week and a quarter of its time are left."""
        short = self.start is None or self.end - now < (self.end - self.start) / 4
        return not self.renewed and short and self.end - now < _SOON

    @property
    def sentence(self) -> str:
        return f"{self.subject} is valid until {timestamp(self.end)}"


class _Claims(Struct, frozen=True):
    exp: float
    iat: float | None = None


def of_certificate(pem: bytes, subject: str) -> Validity | None:
    """Of the first certificate in a PEM text; None when there is none."""
    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
    except ValueError:
        return None
    return Validity(subject, certificate.not_valid_after_utc, certificate.not_valid_before_utc, _names(certificate))


def of_der(der: bytes, subject: str) -> Validity | None:
    return of_certificate(ssl.DER_cert_to_PEM_cert(der).encode(), subject)


def of_token(token: str, subject: str, *, renewed: bool = False) -> Validity | None:
    """Of a JSON web token; None for any other token, which does not say."""
    try:
        _, payload, _ = token.split(".")
        padded = payload + "=" * (-len(payload) % 4)
        claims = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Claims)
        start = datetime.fromtimestamp(claims.iat, UTC) if claims.iat is not None else None
        return Validity(subject, datetime.fromtimestamp(claims.exp, UTC), start, renewed=renewed)
    except (ValueError, OverflowError, OSError, msgspec.MsgspecError):
        return None


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = alternatives.get_values_for_type(x509.IPAddress)
    return (*alternatives.get_values_for_type(x509.DNSName), *map(str, addresses))
