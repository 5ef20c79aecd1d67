"""Why a workload is not as it was requested. Entry points: `why`, `Answer`, `views`.

Commands, tools and pages show what is decided here, and decide nothing themselves.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import MsgspecError, Struct

from datum_compute.answers import cities as places
from datum_compute.answers import delivery, sentences
from datum_compute.answers.hops import FUTURE, Hop, View, is_ready
from datum_compute.answers.owners import deployment_of
from datum_compute.answers.places import Counts, Place, desired_replicas, observed
from datum_compute.answers.seen import Gap, Seen, items
from datum_compute.answers.walk import City, Verdict, walk
from datum_compute.api import reasons
from datum_compute.api.reasons import Acts
from datum_compute.kube import conditions

_CLOCKS_DIFFER = timedelta(seconds=5)
_WHO = (Acts.YOU, Acts.ADMIN, Acts.PLATFORM, Acts.STALLED, Acts.UNKNOWN, Acts.WAIT)
_BADNESS = (Verdict.FINE, Verdict.WAITING, Verdict.DELETING, Verdict.UNKNOWN, Verdict.STALLED, Verdict.BLOCKED)


class Block(Struct, frozen=True):
    """Cities with the same answer."""

    cities: tuple[City, ...]

    @property
    def first(self) -> City:
        return self.cities[0]

    @property
    def missing(self) -> int:
        return sum(city.missing for city in self.cities)


class Unread(Struct, frozen=True):
    """A plane that would show more."""

    plane: str
    why: Gap


class Answer(Struct, frozen=True):
    """`blocks` are the causes, the first of which the sentence names; `fine` are the cities without one."""

    project: str
    kind: str
    name: str
    uid: str
    generation: int
    verdict: Verdict
    sentence: str
    cities: tuple[City, ...] = ()
    blocks: tuple[Block, ...] = ()
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()

    @property
    def cause(self) -> City | None:
        """The city that the sentence is about."""
        return self.blocks[0].first if self.blocks else None

    @property
    def fine(self) -> list[City]:
        return [city for city in self.cities if city.verdict is Verdict.FINE]


def why(seen: Seen, now: datetime, instance: str = "") -> Answer:
    """Never raises, whatever was seen. With the name of an instance, only its city and what happens there."""
    moment = _server_now(seen, now)
    try:
        found = [walk(view) for view in views(seen, moment, instance)]
        notes = _notes(seen, now, moment)
    except (MsgspecError, ArithmeticError, ValueError) as error:
        return _unreadable(seen, instance, str(error))
    blocks = _folded(found)
    workload = seen.workload
    name = instance or workload.name
    verdict = _verdict(found)
    sentence = sentences.head(name, blocks, found, moment, seen.revision)
    kind = "Instance" if instance else "Workload"
    identity = (seen.project, kind, name, workload.metadata.uid, workload.metadata.generation)
    return Answer(*identity, verdict, sentence, tuple(found), tuple(blocks), tuple(notes), tuple(_unread(seen, found)))


def _server_now(seen: Seen, now: datetime) -> datetime:
    """Ages count from the server's time when the two clocks differ."""
    if seen.server_time is None or abs(seen.server_time - now) <= _CLOCKS_DIFFER:
        return now
    return seen.server_time.astimezone(now.tzinfo)


def views(seen: Seen, now: datetime, instance: str = "") -> list[View]:
    """The places that are looked at, in the order of the spec."""
    deployments = [] if isinstance(seen.deployments, Gap) else seen.deployments
    by_place = {Place.of(deployment): deployment for deployment in deployments}
    of_instance = next((deployment_of(found) for found in items(seen.instances) if found.name == instance), "")
    order = {place: index for index, place in enumerate(desired_replicas(seen.workload))}
    found = []
    for city in sorted(
        places.cities(seen.workload, deployments, ()), key=lambda city: order.get(city.place, len(order))
    ):
        deployment = by_place.get(city.place)
        if instance and (deployment is None or deployment.name != of_instance):
            continue
        counted = city.numbers if not isinstance(seen.deployments, Gap) else Counts(desired=city.numbers.desired)
        found.append(View(seen, now, city.place, city.requested, counted, deployment, instance))
    if seen.workload.metadata.deleting:
        found = [view for view in found if view.deployment is not None]
        return found or [View(seen, now, Place("", ""), False, Counts())]
    return found


def _folded(found: Sequence[City]) -> list[Block]:
    groups: dict[tuple[object, ...], list[City]] = {}
    for city in found:
        if city.finding is not None:
            shape = sentences.shape(city.finding.message, city.place.city)
            groups.setdefault((city.finding.hop, city.finding.reason, city.acts, shape), []).append(city)
    order = {city: index for index, city in enumerate(found)}
    blocks = [Block(tuple(group)) for group in groups.values()]
    return sorted(blocks, key=lambda block: (_WHO.index(block.first.acts), -block.missing, order[block.first]))


def _verdict(found: Sequence[City]) -> Verdict:
    worst = max((city.verdict for city in found), key=_BADNESS.index, default=Verdict.FINE)
    is_partly_fine = any(city.verdict is Verdict.FINE for city in found)
    return Verdict.DEGRADED if worst not in (Verdict.FINE, Verdict.DELETING) and is_partly_fine else worst


def _unread(seen: Seen, found: Sequence[City]) -> list[Unread]:
    """Planes that would say more about a city whose cause is not certain."""
    hops = {
        hop
        for city in found
        if city.finding is not None and city.finding.hop in (Hop.WAY, Hop.INSTANCES, Hop.BACK)
        for hop in city.unread
    }
    hub, sites = seen.hub.deployments, [site.deployments for site in seen.sites.values()]
    unread = []
    if any(hop.plane == "hub" for hop in hops) and isinstance(hub, Gap):
        unread.append(Unread("hub", hub))
    elif Hop.CELL in hops:
        unread.append(Unread("cell", next((site for site in sites if isinstance(site, Gap)), Gap.NOT_ASKED)))
    project = (seen.deployments, seen.instances)
    unread += [Unread("project", part) for part in project if part in (Gap.DENIED, Gap.AWAY) and isinstance(part, Gap)]
    return unread


def _notes(seen: Seen, now: datetime, moment: datetime) -> list[str]:
    notes = []
    workload = seen.workload
    if workload.status is not None and not observed(workload):
        notes.append("What is shown answers an earlier request.")
    if moment is not now:
        notes.append("The clocks of this machine and the server differ; ages count from the server's.")
    for view in views(seen, moment):
        if view.is_complete and delivery.site_is_away(view):
            notes.append(f"There is no word from {view.place.city} at the moment; what runs there goes on.")
        if view.is_answered and _parts_differ(view):
            notes.append(f"The summary of {view.place.city} is behind its instances.")
        if _is_ahead(view):
            notes.append(f"The clock of {view.place.city} is ahead ({reasons.CLOCK_AHEAD}); its ages are left out.")
    return notes


def _parts_differ(view: View) -> bool:
    if isinstance(view.seen.instances, Gap) and isinstance(view.seen.site(view.place.city).instances, Gap):
        return False
    live = [instance for instance in view.instances if not instance.metadata.deleting]
    return sum(map(is_ready, live)) > view.numbers.ready


def _is_ahead(view: View) -> bool:
    times = [condition.last_transition_time for instance in view.instances for condition in conditions.of(instance)]
    times += [condition.last_transition_time for condition in conditions.of(view.deployment)] if view.deployment else []
    times += filter(None, (instance.metadata.creation_timestamp for instance in view.instances))
    return any(moment > view.now + FUTURE for moment in times)


def _unreadable(seen: Seen, instance: str, error: str) -> Answer:
    metadata = seen.workload.metadata
    name = instance or metadata.name
    sentence = f"It cannot be said what holds up {name}: the server sent an object that makes no sense ({error})."
    kind = "Instance" if instance else "Workload"
    return Answer(seen.project, kind, name, metadata.uid, metadata.generation, Verdict.UNKNOWN, sentence)
