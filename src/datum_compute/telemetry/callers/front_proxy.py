"""Requests that an API server passes on for its callers. Entry points: `FrontProxy`, `front_proxy`.

An API server that passes a request on authenticates the caller itself. It proves who it is by a client certificate, and
names the caller in headers. Nobody else is believed. Everything here decides without I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from urllib.parse import unquote

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from datum_compute.kube.reviews import Caller

Headers = Iterable[tuple[bytes, bytes]]


class FrontProxy(Struct, frozen=True):
    """How an API server proves that it passes a request on, and where it names the caller; headers in lower case."""

    authority: str  # certificates in PEM
    names: tuple[str, ...]  # common names; without any, nobody is believed
    user_headers: tuple[str, ...] = ("x-remote-user",)
    uid_headers: tuple[str, ...] = ("x-remote-uid",)
    group_headers: tuple[str, ...] = ("x-remote-group",)
    extra_prefixes: tuple[str, ...] = ("x-remote-extra-",)

    def sent(self, certificate: str, now: datetime) -> bool:
        """Whether a client with this certificate, in PEM, is the front proxy.

        The authority is checked for each request, not only when a connection begins: one that was replaced must not be
        believed for as long as its clients stay connected.
        """
        try:
            presented = x509.load_pem_x509_certificate(certificate.encode())
            authorities = x509.load_pem_x509_certificates(self.authority.encode())
        except ValueError:
            return False
        names = [attribute.value for attribute in presented.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return (
            len(names) == 1
            and names[0] in self.names
            and presented.not_valid_before_utc <= now <= presented.not_valid_after_utc
            and _is_for_clients(presented)
            and any(_is_issued_by(presented, authority) for authority in authorities)
        )

    def caller(self, headers: Headers) -> Caller | None:
        """The caller whom the front proxy names; None if it names none."""
        texts = [(name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in headers]
        username = _first(texts, self.user_headers)
        if not username:
            return None
        extra: dict[str, list[str]] = {}
        for name, value in texts:
            prefix = next((prefix for prefix in self.extra_prefixes if name.startswith(prefix)), None)
            if prefix is not None and name != prefix:
                extra.setdefault(unquote(name.removeprefix(prefix)).lower(), []).append(value)
        return Caller(
            username,
            _first(texts, self.uid_headers),
            tuple(value for name, value in texts if name in self.group_headers),
            {key: tuple(values) for key, values in extra.items()},
        )


def front_proxy(data: Mapping[str, str]) -> FrontProxy | None:
    """From the ConfigMap by which an API server says how to recognize it; None where it passes nothing on."""
    authority = data.get("requestheader-client-ca-file", "")
    if not authority.strip():
        return None
    standard = FrontProxy(authority, _listed(data, "requestheader-allowed-names"))
    return FrontProxy(
        authority,
        standard.names,
        _headers(data, "requestheader-username-headers") or standard.user_headers,
        _headers(data, "requestheader-uid-headers") or standard.uid_headers,
        _headers(data, "requestheader-group-headers") or standard.group_headers,
        _headers(data, "requestheader-extra-headers-prefix") or standard.extra_prefixes,
    )


def _headers(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(name.lower() for name in _listed(data, key))


def _listed(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(name for name in msgspec.json.decode(data.get(key, "[]"), type=list[str]) if name)
    except msgspec.MsgspecError:
        return ()


def _first(texts: Sequence[tuple[str, str]], names: Sequence[str]) -> str:
    """The first value, in the order of the names, as API servers choose it."""
    return next((value for wanted in names for name, value in texts if name == wanted and value), "")


def _is_for_clients(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
