"""Observes everything that a process will need, and changes nothing. Entry point: `Gathering`.

Each question has a limited time, and questions that do not depend on each other are asked side by side.
"""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from datum_compute import __version__
from datum_compute.admission.webhook import OF_PROJECT, PATHS
from datum_compute.api.crd import OURS, AnyKind, definition
from datum_compute.api.karmada import CLUSTER, execution_space
from datum_compute.api.services import READY
from datum_compute.cell.name_lease import IDENTITY_NAMESPACE
from datum_compute.federation.sites import city_of, serving_cluster
from datum_compute.kube import conditions
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError, text_of
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError, NotFound, Timeout, Unauthorized, from_status
from datum_compute.kube.http import HttpTransport
from datum_compute.kube.kinds import LEASE, NAMESPACE, Lease
from datum_compute.kube.meta import Json, as_dict
from datum_compute.kube.reviews import may_self, own_name
from datum_compute.kube.transport import Answer, Call
from datum_compute.operator.check import needs, validity
from datum_compute.operator.check.facts import (
    ClusterFacts,
    Failure,
    KindFacts,
    LeaseFacts,
    NameFacts,
    PlaneFacts,
    Registration,
)
from datum_compute.operator.check.needs import Right
from datum_compute.operator.check.schemas import missing_fields, schema_of
from datum_compute.operator.check.validity import Validity
from datum_compute.operator.issuer import MUTATING, VALIDATING
from datum_compute.runtime.caches.phases import Phase, advice, phase_of

_CALLS_AT_ONCE = 16
_AGENT = f"compute-manager-check/{__version__}"

Now = Callable[[], datetime]
T = TypeVar("T")


class Patience(Struct, frozen=True):
    call_seconds: float = 5.0  # for a connection, and for an answer
    question_seconds: float = 20.0  # for all calls that answer one question


class _Service(Struct, frozen=True):
    name: str
    namespace: str
    path: str = ""


class _ClientConfig(Struct, frozen=True, rename="camel"):
    url: str = ""
    service: _Service | None = None
    ca_bundle: str = ""


class Gathering:
    """Asks one plane. `source` is the flag, field or file that names it."""

    def __init__(
        self,
        plane: str,
        source: str,
        endpoint: Endpoint,
        now: Now,
        patience: Patience = Patience(),  # noqa: B008, frozen
    ) -> None:
        self.plane = plane
        self._source = source
        self._endpoint = endpoint
        self._now = now
        self._patience = patience
        self._transport = HttpTransport(
            endpoint,
            agent=_AGENT,
            connect_seconds=patience.call_seconds,
            answer_seconds=patience.call_seconds,
            calls=_CALLS_AT_ONCE,
        )
        self.client = Client(plane, self._transport)

    async def close(self) -> None:
        await self._transport.close(for_good=True)

    async def plane_facts(self, rights: Sequence[Right], *, registrations: bool = False) -> PlaneFacts:
        """What holds for every plane. `registrations` asks for webhooks that lead to this process as well."""
        stated = self._stated_validities()
        try:
            version, skew, user = await self.within(self._reach())
        except ApiError as error:
            return PlaneFacts(self.plane, self._source, failure=_failure(error), validities=stated)
        presented, reviewed, discovered, registered = await asyncio.gather(
            self._presented(), self._reviewed(rights), self._discovered(rights), self._registered(registrations)
        )
        return PlaneFacts(
            self.plane,
            self._source,
            version=version,
            skew=skew,
            user=user,
            validities=(*presented, *stated),
            rights=tuple(rights),
            denied=reviewed[0],
            unreviewed=reviewed[1],
            kinds=discovered[0],
            undiscovered=discovered[1],
            registrations=registered,
        )

    async def _reach(self) -> tuple[str, timedelta | None, str]:
        """Raises `ApiError` when the plane cannot be reached or does not accept the credentials."""
        before = self._now()
        answer = await self._transport.call(Call("GET", "/version"))
        skew = _skew(answer.date, before + (self._now() - before) / 2)
        if answer.code == 401:
            raise from_status(answer.code, answer.body, self.plane)
        version = ""
        with suppress(msgspec.MsgspecError, AttributeError):
            version = str(msgspec.json.decode(answer.body).get("gitVersion", "")) if answer.code == 200 else ""
        try:
            user = await own_name(self.client)
        except Unauthorized:
            raise
        except ApiError as error:
            if not error.answered:
                raise
            user = ""  # an older server, or one that does not say
        return version, skew, user

    def _stated_validities(self) -> tuple[Validity, ...]:
        """Of the credentials, as far as they say."""
        endpoint = self._endpoint
        with suppress(KubeconfigError):
            token = text_of(endpoint.token_file, "the token file").strip() or endpoint.token
            certificate = endpoint.client_cert or text_of(endpoint.client_cert_file, "client-certificate")
            found = (
                validity.of_token(token, "the token", renewed=bool(endpoint.token_file)),
                validity.of_certificate(certificate.encode(), "the client certificate"),
                validity.of_certificate(endpoint.ca_pem.encode(), "the certificate authority"),
            )
            return tuple(stated for stated in found if stated is not None)
        return ()

    async def _presented(self) -> tuple[Validity, ...]:
        """Of the server's certificate; nothing behind a proxy."""
        address = urlsplit(self._endpoint.server)
        if address.scheme != "https" or self._endpoint.proxy or address.hostname is None:
            return ()
        try:
            async with asyncio.timeout(self._patience.call_seconds):
                _, writer = await asyncio.open_connection(
                    address.hostname,
                    address.port or 443,
                    ssl=self._endpoint.tls(),
                    server_hostname=self._endpoint.server_name or address.hostname,
                )
        except (OSError, TimeoutError, KubeconfigError):
            return ()
        try:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()
        found = validity.of_der(certificate, "the certificate of the server") if certificate else None
        return (found,) if found is not None else ()

    async def _reviewed(self, rights: Sequence[Right]) -> tuple[frozenset[Right], str]:
        """The rights that are denied, or why that is not known."""
        try:
            allowed = await self.within(
                asyncio.gather(*(may_self(self.client, _attributes(right)) for right in rights))
            )
        except ApiError as error:
            return frozenset(), str(error)
        return frozenset(right for right, may in zip(rights, allowed, strict=True) if not may), ""

    async def _discovered(self, rights: Sequence[Right]) -> tuple[tuple[KindFacts, ...], str]:
        """The kinds that the rights are about, or why they are not known."""
        needed = needs.kinds(rights)
        groups = dict.fromkeys((kind.group, kind.version) for kind in needed)
        try:
            served = dict(zip(groups, await self.within(_all(self._served(*group) for group in groups)), strict=True))
            facts = await self.within(_all(self._kind(kind, needed[kind], served) for kind in needed))
        except ApiError as error:
            return (), str(error)
        return tuple(facts), ""

    async def _served(self, group: str, version: str) -> frozenset[str]:
        """The resources of a group and version, with their subresources; none when it is not served."""
        document = await self._document(f"/apis/{group}/{version}")
        return frozenset(str(resource.get("name")) for resource in (document or {}).get("resources", ()))

    async def _kind(
        self, kind: AnyKind, subresources: Iterable[str], served: Mapping[tuple[str, str], frozenset[str]]
    ) -> KindFacts:
        resources = served[kind.group, kind.version]
        if kind.plural not in resources:
            group = await self._document(f"/apis/{kind.group}") or {}
            versions = [str(version.get("version")) for version in group.get("versions", ())]
            others = tuple(version for version in versions if version != kind.version)
            return KindFacts(kind, served=False, other_versions=others)
        return KindFacts(
            kind,
            served=True,
            missing_subresources=tuple(name for name in subresources if f"{kind.plural}/{name}" not in resources),
            missing_fields=await self._missing_fields(kind) if kind in OURS else (),
        )

    async def _missing_fields(self, kind: AnyKind) -> tuple[str, ...] | None:
        try:
            document = await self._document(f"/openapi/v3/apis/{kind.group}/{kind.version}")
        except ApiError:
            return None
        schema = schema_of(document or {}, kind.group, kind.version, kind.name)
        if schema is None:
            return None
        ours = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return tuple(missing_fields(ours, schema))

    async def _document(self, path: str) -> Json | None:
        """A document of the API that is not an object; None when there is none."""
        answer: Answer = await self._transport.call(Call("GET", path))
        if answer.code == 404:
            return None
        if answer.code != 200:
            raise from_status(answer.code, answer.body, self.plane)
        try:
            return msgspec.json.decode(answer.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ApiError(f"the answer to {path} makes no sense", plane=self.plane) from None

    async def _registered(self, wanted: bool) -> tuple[Registration, ...] | None:
        if not wanted:
            return None
        try:
            listings = await self.within(_all(self.client.list(kind) for kind in (MUTATING, VALIDATING)))
        except ApiError:
            return None
        return tuple(
            registration
            for listing in listings
            for configuration in listing.items
            for webhook in configuration.webhooks
            if (registration := self._registration(configuration.name, webhook["clientConfig"])) is not None
        )

    def _registration(self, name: str, client_config: Json) -> Registration | None:
        """None for a webhook of somebody else."""
        config = msgspec.convert(client_config, _ClientConfig)
        address = urlsplit(config.url)
        path = config.service.path if config.service is not None else address.path
        if path.partition(OF_PROJECT)[0] not in PATHS:
            return None
        service = config.service
        host = f"{service.name}.{service.namespace}.svc" if service is not None else address.hostname or ""
        try:
            bundle = base64.b64decode(config.ca_bundle)
        except ValueError:
            bundle = b""
        return Registration(self.plane, name, host, path, bundle)

    async def within(self, question: Awaitable[T]) -> T:
        """Raises `Timeout` when the answer takes too long."""
        seconds = self._patience.question_seconds
        try:
            async with asyncio.timeout(seconds):
                return await question
        except TimeoutError:
            raise Timeout(f"no complete answer within {seconds:.0f} s", plane=self.plane) from None

    # What depends on what the plane is for

    async def clusters(self) -> list[ClusterFacts]:
        """Raises `ApiError`."""
        clusters = (await self.within(self.client.list(CLUSTER))).items
        return [
            ClusterFacts(
                cluster.name,
                city_of(cluster),
                conditions.is_true(conditions.of(cluster), READY),
                serving_cluster(clusters, city_of(cluster)) == cluster.name,
            )
            for cluster in sorted(clusters, key=lambda cluster: cluster.name)
        ]

    async def lease_facts(self, namespace: str, name: str) -> LeaseFacts:
        try:
            lease = await self.within(self.client.find(LEASE, name, namespace))
            if lease is None:
                # A lease that is not there does not say whether its namespace is; a dry run does, and changes nothing.
                await self.within(self.client.create(LEASE, LEASE.body(name, namespace) | {"spec": {}}, dry_run=True))
        except NotFound:
            return LeaseFacts(namespace, name, namespace_exists=False)
        except ApiError as error:
            return LeaseFacts(namespace, name, failure=str(error))
        return LeaseFacts(namespace, name, holder=_holder(lease, self._now()))

    async def name_facts(self, name: str, cell: Client) -> NameFacts:
        """Whether `cell` can have its name on this plane, the hub."""
        space = execution_space(name)
        try:
            if await self.within(self.client.find(NAMESPACE, space)) is None:
                return NameFacts(name, space, space_exists=False)
            lease = await self.within(self.client.find(LEASE, name, space))
            identity = await self.within(cell.find(NAMESPACE, IDENTITY_NAMESPACE))
        except ApiError as error:
            return NameFacts(name, space, failure=str(error))
        holder = _holder(lease, self._now())
        own = identity.metadata.uid if identity is not None else ""
        return NameFacts(name, space, holder="" if holder == own else holder)


def handshake_failure(server: ssl.SSLContext, bundle: bytes, host: str) -> str:
    """Why a client that trusts `bundle` would not accept the server as `host`; empty when it does.

    Without a bundle it trusts what this machine trusts. Both sides are in memory.
    """
    try:
        client = ssl.create_default_context(cadata=bundle.decode("ascii", "replace") or None)
    except ssl.SSLError:
        return "caBundle is not a certificate in PEM"
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):  # more turns than any handshake takes
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return str(error.verify_message)
            except ssl.SSLError as error:
                return str(error.reason or "the handshake failed")
    return ""


async def _all(questions: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*questions))


def _failure(error: ApiError) -> Failure:
    phase = phase_of(error, Phase.LIST)
    return Failure(phase, str(error), advice(error, phase, "the API"))


def _skew(date: str, now: datetime) -> timedelta | None:
    """Servers tell whole seconds, so half of one is added."""
    try:
        return parsedate_to_datetime(date) + timedelta(seconds=0.5) - now
    except (TypeError, ValueError):
        return None


def _attributes(right: Right) -> Json:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    return {"resourceAttributes": {name: value for name, value in attributes.items() if value}}


def _holder(lease: Lease | None, now: datetime) -> str:
    """Who holds a lease now, by the times in it, which are good enough for people."""
    spec = as_dict(lease.spec_json) if lease is not None else {}
    holder, seconds = str(spec.get("holderIdentity") or ""), spec.get("leaseDurationSeconds") or 0
    try:
        renewed = datetime.fromisoformat(str(spec.get("renewTime")))
    except ValueError:
        return holder
    return holder if now < renewed + timedelta(seconds=seconds) else ""
