"""What observed facts mean for a start, without I/O. Entry points: the functions, which return diagnoses."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from datum_compute.admission.webhook import OF_PROJECT
from datum_compute.api.crd import OURS
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.kube.access.kubeconfig import UnknownContext
from datum_compute.operator.check.diagnoses import Diagnosis, failed, fine, warning
from datum_compute.operator.check.facts import (
    ClusterFacts,
    KindFacts,
    LeaseFacts,
    NameFacts,
    PlaneFacts,
    ProjectsFacts,
    ServingFacts,
    TrustFacts,
)
from datum_compute.operator.check.needs import HUB, OWN, REQUIRED, Right
from datum_compute.operator.check.validity import Validity
from datum_compute.operator.planes import Unusable
from datum_compute.runtime.caches.phases import Phase

SLIGHT_SKEW = timedelta(seconds=10)
GREAT_SKEW = timedelta(minutes=5)  # certificates and tokens that were just issued are not valid yet

_LISTED = 3  # things that a sentence names before it counts the rest


def kubeconfig(error: Unusable, context: str) -> Diagnosis:
    """A kubeconfig that cannot be used; `context` is the one that was asked for by a flag."""
    if isinstance(error.error, UnknownContext):
        advice = f"name a context of that file with {'--federation-context' if context else 'current-context in it'}"
    else:
        advice = f"correct the file, or let {error.field} name another one"
    return failed("kubeconfig", "", str(error), advice)


def plane(facts: PlaneFacts, now: datetime) -> list[Diagnosis]:
    """Everything about a plane that does not depend on what it is for."""
    over = [validity for validity in facts.validities if validity.is_over(now)]
    if (failure := facts.failure) is not None:
        if failure.phase is Phase.AUTHENTICATION and over:
            return [_expired(facts, validity, "credentials") for validity in over]
        check = "credentials" if failure.phase is Phase.AUTHENTICATION else "connection"
        return [failed(check, facts.plane, failure.sentence, f"{failure.advice} ({facts.source})")]
    version = f"; it runs {facts.version}" if facts.version else ""
    return [
        fine("connection", facts.plane, f"reached with {facts.source}{version}"),
        *_credentials(facts, now),
        *_clock(facts),
        *_rights(facts),
        *_kinds(facts),
    ]


def _credentials(facts: PlaneFacts, now: datetime) -> Iterator[Diagnosis]:
    troubled = False
    for validity in facts.validities:
        if validity.is_over(now):
            troubled = True
            yield _expired(facts, validity, "credentials")
        elif validity.ends_soon(now):
            troubled = True
            yield warning("credentials", facts.plane, validity.sentence, f"renew it soon ({facts.source})")
    if not troubled:
        ends = sorted(facts.validities, key=lambda validity: validity.end)
        until = f"; {ends[0].sentence}" if ends else ""
        yield fine("credentials", facts.plane, f"accepted as {facts.user or 'somebody'}{until}")


def _expired(facts: PlaneFacts, validity: Validity, check: str) -> Diagnosis:
    found = f"{validity.subject} expired at {validity.end:%Y-%m-%d %H:%M:%S} UTC"
    return failed(check, facts.plane, found, f"issue a new one, and put it where {facts.source} has the old one")


def _clock(facts: PlaneFacts) -> Iterator[Diagnosis]:
    if facts.skew is None:
        yield warning("clock", facts.plane, "the server does not say what time it is", "compare the clocks by hand")
        return
    seconds = round(abs(facts.skew.total_seconds()))
    found = f"the server's clock is {seconds} s {'ahead of' if facts.skew > timedelta() else 'behind'} this machine's"
    advice = "synchronize the clocks of this machine and the server, for example by NTP"
    if abs(facts.skew) >= GREAT_SKEW:
        yield failed("clock", facts.plane, found, advice)
    elif abs(facts.skew) >= SLIGHT_SKEW:
        yield warning("clock", facts.plane, found, advice)
    else:
        yield fine("clock", facts.plane, "the clocks agree within seconds")


def _rights(facts: PlaneFacts) -> Iterator[Diagnosis]:
    if facts.unreviewed:
        advice = "let this account create selfsubjectaccessreviews (the role system:basic-user allows it)"
        yield warning("rights", facts.plane, f"the rights cannot be reviewed: {facts.unreviewed}", advice)
        return
    for role in dict.fromkeys(right.role for right in facts.rights if right in facts.denied):
        missing = [right for right in facts.rights if right.role == role and right in facts.denied]
        yield _missing_rights(facts, role, missing)
    if facts.rights and not facts.denied:
        roles = len({right.role for right in facts.rights})
        yield fine("rights", facts.plane, f"all {len(facts.rights)} in {_counted(roles, 'role')}")


def _missing_rights(facts: PlaneFacts, role: str, missing: Sequence[Right]) -> Diagnosis:
    verbs: dict[str, list[str]] = {}
    for right in missing:
        verbs.setdefault(right.target, []).append(right.verb)
    phrases = [f"{', '.join(denied)} {target}" for target, denied in verbs.items()]
    found = f"may not {_listed(phrases, '; ')}"
    namespace = missing[0].namespace
    where = f" in the namespace {namespace}" if namespace else ""
    account = f'"{facts.user}"' if facts.user else f"the account of {facts.source}"
    advice = f"apply deploy/roles/{missing[0].folder} there, and bind {role} to {account}{where}"
    judged = failed if any(right.required for right in missing) else warning
    return judged("rights", facts.plane, found, advice)


def _kinds(facts: PlaneFacts) -> Iterator[Diagnosis]:
    if facts.undiscovered:
        advice = "let this account read the API's discovery (the role system:discovery allows it)"
        yield warning("kinds", facts.plane, f"the kinds cannot be listed: {facts.undiscovered}", advice)
        return
    troubled = [diagnosis for kind in facts.kinds for diagnosis in _kind(facts, kind)]
    yield from troubled
    if facts.kinds and not troubled:
        yield fine("kinds", facts.plane, f"all {len(facts.kinds)} are served")


def _kind(facts: PlaneFacts, observed: KindFacts) -> Iterator[Diagnosis]:
    kind = observed.kind
    definition = f"deploy/crd/compute/{kind.group}_{kind.plural}.yaml" if kind in OURS else ""
    install = f"apply {definition} there" if definition else _provider_of(kind.group)
    judged = failed if kind in REQUIRED else warning
    if not observed.served:
        others = f", only {', '.join(observed.other_versions)}" if observed.other_versions else ""
        yield judged("kinds", facts.plane, f"{kind.resource} is not served in version {kind.version}{others}", install)
        return
    if observed.missing_subresources:
        found = f"{kind.resource} has no subresource {', '.join(observed.missing_subresources)}"
        yield judged("kinds", facts.plane, found, install)
    if observed.missing_fields is None:
        advice = f"compare its definition with {definition} by hand"
        yield warning("kinds", facts.plane, f"the schema of {kind.resource} is not published", advice)
    elif observed.missing_fields:
        fields = _listed(observed.missing_fields)
        found = f"the definition of {kind.resource} is older than this program: it has no {fields}"
        yield failed("kinds", facts.plane, found, install)


def _provider_of(group: str) -> str:
    if group.endswith("karmada.io"):
        return "install Karmada there, or name the API server of Karmada as the hub"
    return f"install the service that defines {group} there, or switch off what needs it"


def clusters(observed: Sequence[ClusterFacts]) -> list[Diagnosis]:
    """The members of the hub, as management sees them."""
    if not observed:
        return [warning("clusters", HUB, "there is no Cluster", "join the cells to Karmada (karmadactl join)")]
    diagnoses: list[Diagnosis] = []
    unlabelled = [cluster.name for cluster in observed if not cluster.city]
    if unlabelled:
        judged = failed if len(unlabelled) == len(observed) else warning
        found = f"{_listed(unlabelled)} without the label {TOPOLOGY_CITY}, so nothing is sent there"
        advice = f"kubectl label cluster {unlabelled[0]} {TOPOLOGY_CITY}=<city>, on the hub"
        diagnoses.append(judged("clusters", HUB, found, advice))
    for cluster in observed:
        if cluster.city and not cluster.serves:
            serving = next(other.name for other in observed if other.city == cluster.city and other.serves)
            found = (
                f"{cluster.name} has the city {cluster.city} of {serving}, which serves it; {cluster.name} stands by"
            )
            advice = f"give {cluster.name} a city of its own, unless it is meant to stand by"
            diagnoses.append(warning("clusters", HUB, found, advice))
        if not cluster.ready:
            advice = f"look at the conditions of Cluster {cluster.name}, and at Karmada's agent or push access to it"
            diagnoses.append(warning("clusters", HUB, f"{cluster.name} is not Ready", advice))
    if not diagnoses:
        served = [f"{cluster.name} serves {cluster.city}" for cluster in observed]
        diagnoses.append(fine("clusters", HUB, _listed(served)))
    return diagnoses


def lease(observed: LeaseFacts) -> Diagnosis:
    if observed.failure:
        return failed(
            "lease", OWN, f"the lease cannot be read: {observed.failure}", "see the rights on the own cluster"
        )
    if not observed.namespace_exists:
        advice = f"kubectl create namespace {observed.namespace}, or name another with --leader-elect-namespace"
        return failed("lease", OWN, f"there is no namespace {observed.namespace} for the lease", advice)
    holder = f"held by {observed.holder}" if observed.holder else "free"
    return fine("lease", OWN, f"{observed.namespace}/{observed.name} is {holder}")


def cell_name(observed: NameFacts) -> Diagnosis:
    if observed.failure:
        return failed("cell name", HUB, f"the name cannot be checked: {observed.failure}", "see the rights on the hub")
    if not observed.space_exists:
        found = f"the hub has no namespace {observed.space}: no Cluster there is called {observed.name}"
        advice = "join this cluster to Karmada under that name, or correct discovery.clusterName"
        return failed("cell name", HUB, found, advice)
    if observed.holder:
        found = f"{observed.name} is held by the cluster whose namespace kube-system has uid {observed.holder}"
        return failed("cell name", HUB, found, "give one of the two another discovery.clusterName")
    return fine("cell name", HUB, f"{observed.name} is free, or this cluster's own")


def projects(observed: ProjectsFacts) -> list[Diagnosis]:
    if observed.failure:
        advice = "see the diagnoses about that plane"
        return [failed("projects", "", f"the projects cannot be listed: {observed.failure}", advice)]
    diagnoses = [failed("projects", f"project {file.project}", file.sentence, file.advice) for file in observed.files]
    if observed.unready:
        found = f"not Ready, and so not worked on: {_listed(observed.unready)}"
        diagnoses.append(warning("projects", "", found, "look at the conditions of these Projects"))
    if not observed.names and not diagnoses:
        advice = "nothing, if there are none yet; their planes were not tried"
        diagnoses.append(warning("projects", "", f"{observed.place} has no project", advice))
    elif observed.names:
        sample = "" if len(observed.tried) == len(observed.names) else f", of which {len(observed.tried)} were tried"
        diagnoses.append(fine("projects", "", f"{observed.place} has {len(observed.names)}{sample}"))
    return diagnoses


def serving(observed: ServingFacts, now: datetime) -> list[Diagnosis]:
    check, diagnoses = f"{observed.server} server", []
    if observed.occupied and not observed.running:
        advice = f"end what listens there, or change {observed.field}"
        diagnoses.append(failed(check, "", observed.occupied, advice))
    elif observed.running and not observed.occupied:
        advice = "see the log of the process, or leave out --running where it does not run"
        diagnoses.append(failed(check, "", f"nobody listens on the address in {observed.field}", advice))
    certificate, source = observed.certificate, observed.certificate_source
    if observed.unusable:
        diagnoses.append(failed(check, "", observed.unusable, f"provide certificate and key in {source}"))
    elif certificate is not None and certificate.is_over(now):
        found = f"the certificate expired at {certificate.end:%Y-%m-%d %H:%M:%S} UTC"
        diagnoses.append(failed(check, "", found, f"issue a new one, and put it into {source}"))
    elif certificate is not None and certificate.start is not None and now < certificate.start:
        found = f"the certificate is not valid before {certificate.start:%Y-%m-%d %H:%M:%S} UTC"
        diagnoses.append(failed(check, "", found, f"check the clock, or issue a new one and put it into {source}"))
    elif certificate is not None and certificate.ends_soon(now):
        advice = f"put a new one into {source}, and see why it was not renewed"
        diagnoses.append(warning(check, "", certificate.sentence, advice))
    if not diagnoses:
        names = f" for {_listed(certificate.names)}" if certificate is not None and certificate.names else ""
        able = "it listens" if observed.running else "it can listen"
        found = f"{able}; {certificate.sentence}{names}" if certificate is not None else able
        diagnoses.append(fine(check, "", found))
    return diagnoses


def trust(observed: Iterable[TrustFacts], names: Sequence[str], *, per_project: bool) -> list[Diagnosis]:
    """Whether API servers accept the webhook's certificate, which is issued for `names`.

    `per_project` means that only the path of a registration can name the project.
    """
    diagnoses = []
    for facts in observed:
        registration = facts.registration
        check, what = "webhook trust", f"{registration.name} calls {registration.host}"
        if facts.failure and registration.host not in names and not _is_wildcard_of(registration.host, names):
            found = f"{what}, and the certificate is for {_listed(names) if names else 'no name at all'}"
            advice = f"issue a certificate for {registration.host}, or correct the registration's clientConfig"
            diagnoses.append(failed(check, registration.plane, found, advice))
        elif facts.failure:
            advice = f"put the authority that signed the certificate into caBundle of {registration.name}"
            diagnoses.append(failed(check, registration.plane, f"{what} and refuses it: {facts.failure}", advice))
        elif per_project and OF_PROJECT not in registration.path:
            found = f"{what} at {registration.path}, which does not name the project"
            advice = f"let clientConfig's path end with {OF_PROJECT}<name>"
            diagnoses.append(failed(check, registration.plane, found, advice))
        elif facts.not_compared:
            found = f"{what}, and its caBundle was not compared: {facts.not_compared}"
            diagnoses.append(fine(check, registration.plane, found))
        else:
            diagnoses.append(fine(check, registration.plane, f"{what} and trusts it"))
    return diagnoses


def registrations(facts: PlaneFacts) -> list[Diagnosis]:
    """Whether an API server has the webhook at all; only failures, because `trust` reports the rest."""
    if facts.failure is not None:
        return []
    if facts.registrations is None:
        found = "the webhook's registrations cannot be read by this account, so names and caBundle were not compared"
        return [fine("webhook trust", facts.plane, found)]
    if not facts.registrations:
        advice = "register the webhook there, or leave out webhookServer"
        return [warning("webhook trust", facts.plane, "no registration leads to the webhook", advice)]
    return []


def _is_wildcard_of(host: str, names: Iterable[str]) -> bool:
    return f"*.{host.partition('.')[2]}" in names


def _listed(texts: Sequence[str], separator: str = ", ") -> str:
    rest = len(texts) - _LISTED
    return separator.join(texts[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
