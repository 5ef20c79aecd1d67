"""`compute-manager check`: tries everything that a start needs. Entry points: `run`, `diagnoses`."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from datum_compute import __version__
from datum_compute.federation.identity import Identity
from datum_compute.kube.access.kubeconfig import Endpoint, KubeconfigError
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.tracing import TracingUnavailable, check_available
from datum_compute.operator.certificates import Pair, ServingError, Source, from_secret, server_context, with_authority
from datum_compute.operator.check import judgement, needs, validity
from datum_compute.operator.check.diagnoses import Diagnosis, Result, document, failed, fine, table
from datum_compute.operator.check.facts import (
    PlaneFacts,
    ProjectFile,
    ProjectsFacts,
    Registration,
    ServingFacts,
    TrustFacts,
)
from datum_compute.operator.check.gathering import Gathering, Now, Patience, handshake_failure
from datum_compute.operator.check.needs import HUB, OWN, PROJECT, ROOT
from datum_compute.operator.config import KUBECONFIGS, MILO, SINGLE, ConfigError, SelfSigned, Tls, read
from datum_compute.operator.directory import kubeconfig_files, project_endpoint
from datum_compute.operator.discovery import CONTROL_PLANES, PROJECTS
from datum_compute.operator.flags import Flags, UsageError, parse_check
from datum_compute.operator.issuer import issued_names
from datum_compute.operator.planes import (
    Endpoints,
    Unusable,
    own_namespace,
    refuse_directory,
    refuse_homeless_certificate,
    refuse_homeless_lease,
    sources,
)
from datum_compute.operator.serving import listen, pair_place, pair_source
from datum_compute.operator.settings import Address, Refused, Settings, settled
from datum_compute.runtime import SystemClock
from datum_compute.runtime.telemetry import logs

SAMPLE = 10
"""Projects that are tried when there are more."""

_CORRECT = "correct it; docs/operator.md describes every flag and field"


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Prints the diagnoses. Returns 0 if nothing failed, 1 if something did, 2 for bad usage."""
    try:
        flags, own = parse_check(arguments, environment, __version__)
        if not flags.server_config:
            raise UsageError("--server-config is required: name the config file")
    except UsageError as error:
        print(f"compute-manager: {error}; see compute-manager check --help", file=sys.stderr)
        return 2
    logs.configure("error", flags.log_format)
    found = asyncio.run(diagnoses(flags, environment, SystemClock().now, running=own.running))
    print(document(found) if own.output == "json" else table(found))
    return 1 if any(diagnosis.result is Result.FAILED for diagnosis in found) else 0


async def diagnoses(
    flags: Flags,
    environment: Mapping[str, str],
    now: Now,
    patience: Patience = Patience(),  # noqa: B008, frozen
    *,
    running: bool = False,
) -> list[Diagnosis]:
    """All diagnoses, those about the configuration first. Nothing is changed on any plane.

    `running` means that the process itself runs here, and uses its addresses.
    """
    try:
        settings = settled(flags, read(Path(flags.server_config)))
    except (ConfigError, Refused) as error:
        return [failed("configuration", "", str(error), _CORRECT)]
    found, endpoints, fields = _endpoints(settings, environment)
    async with AsyncExitStack() as stack:
        return [*found, *await _Check(settings, endpoints, fields, now, patience, stack, running).diagnoses()]


def _endpoints(settings: Settings, environment: Mapping[str, str]) -> tuple[list[Diagnosis], Endpoints, dict[str, str]]:
    """The endpoints that can be used, with the flags or fields that name them, and what is wrong with the others."""
    found: dict[str, Diagnosis] = {}
    usable: dict[str, Endpoint] = {}
    fields: dict[str, str] = {}
    for name, (field, load) in sources(settings, environment).items():
        try:
            usable[name], fields[name] = load(), field
        except Unusable as error:
            found[str(error)] = judgement.kubeconfig(error, settings.federation_context if name == "hub" else "")
    endpoints = Endpoints(host=usable.get("host"), hub=usable.get("hub"), root=usable.get("root"))
    try:
        refuse_directory(settings)
        if endpoints.host is not None:
            namespace = own_namespace(settings, endpoints.host)
            refuse_homeless_lease(settings, namespace)
            refuse_homeless_certificate(settings, namespace)
        endpoints = Endpoints.of(settings, usable)
        check_available(environment)
    except (Refused, TracingUnavailable) as error:
        found[str(error)] = failed("configuration", "", str(error), _CORRECT)
    if not found:
        groups = {"management": settings.management, "cell": settings.cell}
        chosen = " and ".join(name for name, enabled in groups.items() if enabled) or "no"
        text = f"valid: {chosen} controllers, discovery mode {settings.config.discovery.mode}"
        return [fine("configuration", "", text)], endpoints, fields
    return list(found.values()), endpoints, fields


class _Check:
    """One run. Planes are asked side by side; projects as soon as it is known which there are."""

    def __init__(
        self,
        settings: Settings,
        endpoints: Endpoints,
        fields: Mapping[str, str],
        now: Now,
        patience: Patience,
        stack: AsyncExitStack,
        running: bool,
    ) -> None:
        self._settings = settings
        self._running = running
        self._endpoints = endpoints
        self._fields = fields
        self._now = now
        self._patience = patience
        self._stack = stack
        self._namespace = own_namespace(settings, endpoints.host)
        self._rights = needs.rights(settings, self._namespace)
        self._admits = settings.config.webhook_server is not None
        self._own = self._gathering(OWN, "host", endpoints.host)
        self._hub = self._gathering(HUB, "hub", endpoints.hub)
        self._root = self._gathering(ROOT, "root", endpoints.root)

    async def diagnoses(self) -> list[Diagnosis]:
        mode = self._settings.config.discovery.mode
        own, hub, root, projects, servers, issued = await asyncio.gather(
            self._facts(self._own, OWN, registered=self._admits and mode == SINGLE),
            self._facts(self._hub, HUB),
            self._facts(self._root, ROOT, registered=self._admits),
            self._projects(),
            self._servers(),
            self._issued(),
        )
        lease, name, clusters = await asyncio.gather(self._lease(own), self._name(own, hub), self._clusters(hub))
        found, tried = projects
        return [
            *self._judged(own),
            *lease,
            *self._judged(hub),
            *name,
            *clusters,
            *self._judged(root),
            *(judgement.projects(found) if found is not None else ()),
            *(diagnosis for facts in tried for diagnosis in self._judged(facts)),
            *(diagnosis for server, _ in servers for diagnosis in judgement.serving(server, self._now())),
            *self._trust([facts for facts in (own, root, *tried) if facts is not None], servers, issued),
        ]

    def _judged(self, facts: PlaneFacts | None) -> list[Diagnosis]:
        return judgement.plane(facts, self._now()) if facts is not None else []

    def _gathering(self, plane: str, name: str, endpoint: Endpoint | None, field: str = "") -> Gathering | None:
        if endpoint is None:
            return None
        gathering = Gathering(plane, field or self._fields[name], endpoint, self._now, self._patience)
        self._stack.push_async_callback(gathering.close)
        return gathering

    async def _facts(self, gathering: Gathering | None, plane: str, *, registered: bool = False) -> PlaneFacts | None:
        if gathering is None:
            return None
        return await gathering.plane_facts(self._rights.get(plane, ()), registrations=registered)

    # What depends on what a plane is for; nothing more is asked of one that does not answer

    async def _lease(self, own: PlaneFacts | None) -> list[Diagnosis]:
        settings = self._settings
        if self._own is None or not _answers(own) or not settings.leader_elect or not self._namespace:
            return []
        return [judgement.lease(await self._own.lease_facts(self._namespace, settings.lease))]

    async def _name(self, own: PlaneFacts | None, hub: PlaneFacts | None) -> list[Diagnosis]:
        settings = self._settings
        named = settings.cell and settings.config.discovery.cluster_name
        if not named or self._own is None or self._hub is None or not _answers(own) or not _answers(hub):
            return []
        return [judgement.cell_name(await self._hub.name_facts(settings.cluster_name, self._own.client))]

    async def _clusters(self, hub: PlaneFacts | None) -> list[Diagnosis]:
        if self._hub is None or not _answers(hub) or not self._settings.management:
            return []
        try:
            return judgement.clusters(await self._hub.clusters())
        except ApiError as error:
            return [
                failed("clusters", HUB, f"the Clusters cannot be listed: {error}", "see the diagnoses about the hub")
            ]

    # Projects

    async def _projects(self) -> tuple[ProjectsFacts | None, list[PlaneFacts]]:
        settings, mode = self._settings, self._settings.config.discovery.mode
        claims = settings.cell and settings.quota and not settings.projects
        try:
            if settings.projects and mode == MILO:
                facts, endpoint_of = await self._listed()
            elif mode == KUBECONFIGS and (settings.projects or claims):
                facts, endpoint_of = await self._in_directory(claims)
            elif claims:
                facts, endpoint_of = await self._in_cell()
            else:
                return None, []
        except (ApiError, OSError) as error:
            return ProjectsFacts("", failure=str(error)), []
        if facts is None:
            return None, []
        tried = facts.names[:SAMPLE]
        gatherings = []
        for name in tried:
            endpoint, source = endpoint_of(name)
            if (gathering := self._gathering(f"project {name}", "", endpoint, source)) is not None:
                gatherings.append(gathering)
        registered = self._admits and mode == KUBECONFIGS
        planes = await asyncio.gather(
            *(
                gathering.plane_facts(self._rights.get(PROJECT, ()), registrations=registered)
                for gathering in gatherings
            )
        )
        return replace(facts, tried=tried), planes

    async def _listed(self) -> "_Found":
        """From the root; None when that cannot be used, which is reported already."""
        if self._root is None or self._endpoints.project is None:
            return None, _nowhere
        announcement = CONTROL_PLANES if self._settings.config.discovery.internal_service_discovery else PROJECTS
        try:
            listed = (await self._root.within(self._root.client.list(announcement.kind))).items
        except ApiError:
            return None, _nowhere
        ready = tuple(sorted(project.name for project in listed if announcement.is_ready(project)))
        unready = tuple(sorted(project.name for project in listed if not announcement.is_ready(project)))
        return ProjectsFacts("the root", ready, unready=unready), lambda name: (
            self._endpoints.of_project(name),
            self._fields["project"],
        )

    async def _in_directory(self, claims: bool) -> "_Found":
        directory = Path(self._settings.config.discovery.kubeconfig_dir)
        try:
            paths = kubeconfig_files(directory)
        except OSError:  # that it is no directory is reported already
            return None, _nowhere
        endpoints: dict[str, Endpoint] = {}
        files = []
        for project, path in paths.items():
            try:
                endpoints[project] = project_endpoint(path, trusted=self._settings.trust_project_kubeconfigs)
            except KubeconfigError as error:
                files.append(ProjectFile(project, str(error), f"correct or replace {path}"))
        for project in sorted(set(await self._names_in_cell()) - paths.keys()) if claims else ():
            sentence = f'{directory} has no kubeconfig for project "{project}", whose Instances run here'
            files.append(ProjectFile(project, sentence, f"put its kubeconfig there, as {project}.yaml"))
        names = tuple(sorted(endpoints))
        return ProjectsFacts(str(directory), names, files=tuple(files)), lambda name: (
            endpoints[name],
            str(paths[name]),
        )

    async def _in_cell(self) -> "_Found":
        if self._endpoints.quota is None:
            return None, _nowhere
        return ProjectsFacts("this cell", tuple(await self._names_in_cell())), lambda name: (
            self._endpoints.of_quota(name),
            self._fields["quota"],
        )

    async def _names_in_cell(self) -> list[str]:
        """Of the projects that the cell's namespaces belong to; none when the cell does not answer."""
        if self._own is None:
            return []
        try:
            namespaces = (await self._own.within(self._own.client.list(NAMESPACE))).items
        except ApiError:
            return []
        identities = (Identity.of(namespace.metadata.labels) for namespace in namespaces)
        return sorted({identity.project for identity in identities if identity is not None})

    # Servers of this process

    async def _servers(self) -> "list[_Observed]":
        settings, config = self._settings, self._settings.config
        observed: list[Coroutine[Any, Any, _Observed]] = []
        if settings.health is not None:
            observed.append(self._server("health", "--health-probe-bind-address", settings.health))
        if settings.metrics is not None:
            tls = config.metrics_server.tls
            secured = config.metrics_server.secure_serving and (tls.cert_dir or tls.secret_ref)
            source = self._source(tls) if secured else None
            place = pair_place(tls)
            observed.append(self._server("metrics", "metricsServer.bindAddress", settings.metrics, source, place))
        if (webhook := config.webhook_server) is not None:
            source = self._source(webhook.tls, webhook.client_ca_name) if webhook.tls.self_signed is None else None
            if source is not None and settings.webhook_client_ca:
                source = with_authority(source, Path(settings.webhook_client_ca))
            address, place = Address(webhook.host, webhook.port), pair_place(webhook.tls)
            observed.append(self._server("webhook", "webhookServer.port", address, source, place))
        if (logs := config.logs_server) is not None:
            address, place = Address(logs.host, logs.port), pair_place(logs.tls)
            observed.append(self._server("logs", "logsServer.port", address, self._source(logs.tls), place))
        return list(await asyncio.gather(*observed))

    def _source(self, tls: Tls, authority: str = "") -> Source | None:
        """None when the certificate is in a Secret of a cluster that cannot be asked."""
        if tls.secret_ref is not None and self._own is None:
            return None
        return pair_source(tls, self._own_client, authority)

    def _own_client(self) -> Client:
        assert self._own is not None
        return self._own.client

    async def _server(
        self, name: str, field: str, address: Address, source: Source | None = None, place: str = ""
    ) -> "_Observed":
        facts, pair = ServingFacts(name, field, running=self._running, certificate_source=place), None
        try:
            listen(name, address).close()
        except ServingError as error:
            facts = replace(facts, occupied=str(error))
        if source is None:
            return facts, None
        try:
            pair = await source()
            server_context(pair)
        except ServingError as error:
            return replace(facts, unusable=str(error)), None
        return replace(facts, certificate=validity.of_certificate(pair.certificate, "the certificate")), pair

    async def _issued(self) -> Pair | str:
        """The certificate that the process has issued itself, or why it is not known."""
        webhook = self._settings.config.webhook_server
        if webhook is None or webhook.tls.self_signed is None or self._own is None:
            return "the cluster of the process cannot be asked for it"
        source = from_secret(self._own.client, self._namespace, webhook.tls.self_signed.secret_name)
        try:
            pair = await self._own.within(source())
            server_context(pair)
        except (ServingError, ApiError) as error:
            return str(error)
        return pair

    def _own_trust(self, settings: SelfSigned, found: Registration, issued: Pair | str) -> TrustFacts:
        if found.host not in issued_names(settings, self._namespace):
            return TrustFacts(found, "it has another name")
        if isinstance(issued, str):
            return TrustFacts(found, not_compared=issued)
        certificate = validity.of_certificate(issued.certificate, "the certificate")
        if certificate is None or certificate.is_over(self._now()) or found.host not in certificate.names:
            return TrustFacts(found, not_compared="the certificate has to be renewed, which the process does itself")
        return TrustFacts(found, handshake_failure(server_context(issued), found.bundle, found.host))

    def _trust(
        self, planes: Sequence[PlaneFacts], servers: "Sequence[_Observed]", issued: Pair | str
    ) -> list[Diagnosis]:
        """Nothing about a certificate that API servers would refuse anyway."""
        webhook, mode = self._settings.config.webhook_server, self._settings.config.discovery.mode
        registering = [facts for facts in planes if self._could_register(facts.plane, mode)]
        registered = [registration for facts in registering for registration in facts.registrations or ()]
        if webhook is None:
            return []
        if webhook.tls.self_signed is not None:
            names = issued_names(webhook.tls.self_signed, self._namespace)
            trusts = [self._own_trust(webhook.tls.self_signed, found, issued) for found in registered]
        else:
            facts, pair = next(observed for observed in servers if observed[0].server == "webhook")
            if pair is None or facts.certificate is None or facts.certificate.is_over(self._now()):
                return []
            names, context = facts.certificate.names, server_context(replace(pair, authority=None))
            trusts = [TrustFacts(found, handshake_failure(context, found.bundle, found.host)) for found in registered]
        return [
            *(diagnosis for facts in registering for diagnosis in judgement.registrations(facts)),
            *judgement.trust(trusts, names, per_project=mode == KUBECONFIGS),
        ]

    @staticmethod
    def _could_register(plane: str, mode: str) -> bool:
        return {SINGLE: plane == OWN, MILO: plane == ROOT}.get(mode, plane.startswith(PROJECT))


EndpointOf = Callable[[str], tuple[Endpoint, str]]
_Found = tuple[ProjectsFacts | None, EndpointOf]
_Observed = tuple[ServingFacts, Pair | None]


def _nowhere(name: str) -> tuple[Endpoint, str]:
    raise KubeconfigError(f"project {name} has no endpoint")


def _answers(facts: PlaneFacts | None) -> bool:
    return facts is not None and facts.failure is None
