"""The webhook certificate that the program issues and renews itself. Entry point: `Issuer`.

Every replica does this, leading or not: it reads the Secret, takes the step that is due, and lets the registered
webhooks trust the authorities in it. Of several replicas that take a step the server lets one through.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from ipaddress import ip_address

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from msgspec import field
from prometheus_client import CollectorRegistry

from datum_compute.federation.metrics import CERTIFICATE_PREPARED
from datum_compute.kube.authority import SERVER, issue, new_authority
from datum_compute.kube.client import Client
from datum_compute.kube.errors import AlreadyExists, ApiError, Conflict
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import Json, KubeObject
from datum_compute.operator import config
from datum_compute.operator.certificates import RELOAD_SECONDS, SECRET, Pair, Secret, ServingError
from datum_compute.operator.rotation import Contents, Serving, Step, after, next_step
from datum_compute.runtime import Clock

VALID_DAYS = 365
MADE_HERE = {"app.kubernetes.io/managed-by": "datum-compute"}

_ATTEMPTS = 5  # against other replicas
_LOOKS = 3  # per overlap, so that every replica notices a step well before the next
_NAME = "compute-webhook"

_log = structlog.get_logger(__name__)


class Registration(KubeObject, frozen=True):
    """A MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""

    webhooks: list[Json] = field(default_factory=list)


def _registration(type_: str) -> Kind[Registration]:
    name = f"{type_}WebhookConfiguration"
    return Kind("admissionregistration.k8s.io", "v1", name, f"{name.lower()}s", Registration, namespaced=False)


MUTATING, VALIDATING = _registration("Mutating"), _registration("Validating")


def issued_names(settings: config.SelfSigned, namespace: str) -> tuple[str, ...]:
    """The names that the certificate is issued for."""
    return (f"{settings.service_name}.{namespace}.svc", *settings.hosts)


class Issuer:
    """`read` is the source of the certificates to serve; each call also does what is due."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        settings: config.SelfSigned,
        clock: Clock,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._settings = settings
        self._clock = clock
        self._hosts = frozenset(issued_names(settings, namespace))
        self._names = [
            *((MUTATING, name) for name in settings.mutating_webhooks),
            *((VALIDATING, name) for name in settings.validating_webhooks),
        ]
        self._in_place: tuple[Contents, float] | None = None  # and since when
        self._problems: dict[str, str] = {}
        self._prepared = CERTIFICATE_PREPARED.gauge(registry)

    @property
    def seconds_between_reads(self) -> float:
        return min(RELOAD_SECONDS, self._settings.overlap_seconds / _LOOKS)

    async def read(self) -> Pair:
        # In this order a replica with outdated contents cannot undo what another one has registered since.
        registrations = [await self._registration(kind, name) for kind, name in self._names]
        contents = await self._advance()
        self._prepared.set(contents.prepared is not None)
        trusted = base64.b64encode(b"".join(contents.trusted)).decode()
        is_in_place = all([await self._register(found, trusted) for found in registrations])
        if not is_in_place:
            self._in_place = None
        elif self._in_place is None or self._in_place[0] != contents:
            self._in_place = contents, asyncio.get_running_loop().time()
        assert contents.current is not None
        return Pair(contents.current.certificate, contents.current.key)

    # The Secret

    async def _advance(self) -> Contents:
        """The contents of the Secret after the step that is due."""
        for _ in range(_ATTEMPTS):
            secret = await self._secret()
            contents = contents_of(secret.data) if secret is not None else Contents()
            step = next_step(contents, self._clock.now(), self._hosts, noticed=self._is_noticed(contents))
            if step is None:
                return contents
            try:
                return await self._take(step, secret, contents)
            except (AlreadyExists, Conflict):
                continue  # another replica was faster
            except ApiError as error:
                if contents.current is None:
                    raise ServingError(f"{self._place} cannot be written: {error}") from None
                self._report(self._place, f"cannot be written: {error}")
                return contents
        raise ServingError(f"{self._place} is changed by somebody else again and again")

    @property
    def _place(self) -> str:
        return f"Secret {self._namespace}/{self._settings.secret_name}"

    async def _secret(self) -> Secret | None:
        try:
            secret = await self._client.find(SECRET, self._settings.secret_name, self._namespace)
        except ApiError as error:
            raise ServingError(f"{self._place} cannot be read: {error}") from None
        if secret is not None and not MADE_HERE.items() <= secret.metadata.labels.items():
            raise ServingError(
                f"{self._place} was not created by compute-manager: delete it, name another one with "
                "webhookServer.tls.selfSigned.secretName, or use it as secretRef"
            )
        return secret

    def _is_noticed(self, contents: Contents) -> bool:
        if self._in_place is None or self._in_place[0] != contents:
            return False
        return asyncio.get_running_loop().time() - self._in_place[1] >= self._settings.overlap_seconds

    async def _take(self, step: Step, secret: Secret | None, before: Contents) -> Contents:
        contents = after(before, step, lambda: new_certificate(self._hosts, self._clock.now()))
        name = self._settings.secret_name
        if secret is None:
            body = SECRET.body(name, self._namespace, labels=MADE_HERE)
            await self._client.create(SECRET, body | {"type": "kubernetes.io/tls", "data": data_of(contents)})
        else:
            removed = dict.fromkeys(secret.data)
            patch = {
                "metadata": {"resourceVersion": secret.metadata.resource_version},
                "data": removed | data_of(contents),
            }
            await self._client.merge_patch(SECRET, name, self._namespace, patch)
        assert contents.current is not None
        self._problems.pop(self._place, None)
        _log.info(f"webhook certificate {step.value}", secret=self._place, ends=f"{contents.current.ends:%F}")
        return contents

    # The registered webhooks

    async def _registration(self, kind: Kind[Registration], name: str) -> Registration | ApiError | None:
        """None if it does not exist, the error if that is unknown."""
        try:
            return await self._client.find(kind, name)
        except ApiError as error:
            self._report(f"{kind.name} {name}", f"cannot be read: {error}")
            return error

    async def _register(self, registration: Registration | ApiError | None, trusted: str) -> bool:
        """Whether the webhooks trust these authorities now. Those that are not registered yet do so later."""
        if not isinstance(registration, Registration):
            return registration is None
        kind, metadata = registration.kind, registration.metadata
        place = f"{kind.name} {metadata.name}"
        webhooks = trusting(registration.webhooks, trusted)
        if webhooks != registration.webhooks:
            patch = {"metadata": {"resourceVersion": metadata.resource_version}, "webhooks": webhooks}
            try:
                await self._client.merge_patch(kind, metadata.name, "", patch)
            except Conflict:
                return False  # another replica was faster, or somebody changed them
            except ApiError as error:
                self._report(place, f"cannot be given the authority of its certificate: {error}")
                return False
            _log.info("webhooks trust the certificate", registration=place)
        self._problems.pop(place, None)
        return True

    def _report(self, place: str, problem: str) -> None:
        """Once, until it changes or ends."""
        if self._problems.get(place) != problem:
            self._problems[place] = problem
            _log.warning("webhook certificate", place=place, problem=problem)


def trusting(webhooks: Sequence[Json], trusted: str) -> list[Json]:
    """Webhooks whose clients trust these authorities: PEM in base64."""
    return [
        webhook | {"clientConfig": (webhook.get("clientConfig") or {}) | {"caBundle": trusted}} for webhook in webhooks
    ]


def new_certificate(hosts: frozenset[str], now: datetime) -> Serving:
    """With a new authority, whose key is not kept: it signs nothing else."""
    authority = new_authority(_NAME, now, VALID_DAYS)
    names = [_general_name(host) for host in sorted(hosts)]
    pair = issue(authority, _NAME, now, VALID_DAYS, purposes=[SERVER], names=names)
    return _serving(pair.certificate_pem, pair.key_pem, authority.certificate_pem)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


# What the Secret has: the keys that others read as well, and the pair that is served next.
_CURRENT, _PREPARED, _TRUSTED = "tls", "next", "ca.crt"


def data_of(contents: Contents) -> dict[str, str]:
    pairs = {_CURRENT: contents.current, _PREPARED: contents.prepared}
    parts = {_TRUSTED: b"".join(contents.trusted)}
    for name, serving in pairs.items():
        if serving is not None:
            parts |= {f"{name}.crt": serving.certificate, f"{name}.key": serving.key}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def contents_of(data: Mapping[str, str]) -> Contents:
    trusted = tuple(certificate.public_bytes(Encoding.PEM) for certificate in _certificates(_part(data, _TRUSTED)))
    current, prepared = (
        _usable(_part(data, f"{name}.crt"), _part(data, f"{name}.key"), trusted) for name in (_CURRENT, _PREPARED)
    )
    return Contents(current, prepared, trusted)


def _part(data: Mapping[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(data.get(name, ""), validate=True)
    except binascii.Error:
        return b""


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _usable(certificate: bytes, key: bytes, trusted: Sequence[bytes]) -> Serving | None:
    """None for a pair that is none, does not fit together, or that no trusted authority has signed."""
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError):
        return None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        return None
    authority = next((pem for pem in trusted if _has_signed(pem, leaf)), None)
    return _serving(certificate, key, authority) if authority is not None else None


def _has_signed(authority: bytes, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _serving(certificate: bytes, key: bytes, authority: bytes) -> Serving:
    leaf = x509.load_pem_x509_certificate(certificate)
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    hosts = frozenset([*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))])
    return Serving(certificate, key, authority, leaf.not_valid_before_utc, leaf.not_valid_after_utc, hosts)
