"""The hops on which a request travels to its site and back. Entry points: `Hop`, `Finding`, `View`, `Step`."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property

from msgspec import Struct

from datum_compute.answers.health import instance_health
from datum_compute.answers.owners import deployment_of
from datum_compute.answers.places import Counts, Place, observed
from datum_compute.answers.rollout import is_behind
from datum_compute.answers.seen import Gap, Seen, items
from datum_compute.api import reasons
from datum_compute.api.deployment import AVAILABLE, FEDERATED, WorkloadDeployment
from datum_compute.api.instance import READY, Instance
from datum_compute.api.labels import DEPLOYMENT_NAME
from datum_compute.api.reasons import Acts
from datum_compute.api.template_hash import template_hash
from datum_compute.kube import conditions
from datum_compute.kube.meta import Condition

_EPOCH_YEAR = 1970  # the default of schemas
FUTURE = timedelta(seconds=60)  # how far ahead a clock may be


class Hop(Enum):
    """In this order; each with the word it is folded into, the plane that shows it, and how long it normally takes."""

    ACCESS = ("asked", "project", 0)
    MANAGER = ("asked", "project", 10)
    NETWORK = ("asked", "project", 0)
    OFFER = ("asked", "project", 0)
    ROLLOUT = ("asked", "project", 0)
    DEPLOYMENT = ("asked", "project", 10)
    HUB = ("routed", "hub", 10)
    POLICY = ("routed", "hub", 10)
    SITE = ("routed", "hub", 60)
    BINDING = ("routed", "hub", 30)
    WORK = ("routed", "hub", 60)
    CELL = ("at the site", "cell", 30)
    INSTANCES = ("created", "cell", 0)
    GATES = ("quota", "project", 0)
    RUNTIME = ("running", "project", 0)
    BACK = ("running", "hub", 60)
    PROJECTION = ("running", "project", 30)
    DELETION = ("deleted", "project", 120)
    WAY = ("routed", "hub", 0)  # stands for those from the hub to the cell, where nobody could read them

    def __init__(self, word: str, plane: str, seconds: int) -> None:
        self.word = word
        self.plane = plane
        self.normal = timedelta(seconds=seconds)

    # Enum would take two hops with equal values for one.
    def __new__(cls, word: str, plane: str, seconds: int) -> "Hop":
        hop = object.__new__(cls)
        hop._value_ = (len(cls.__members__), word, plane, seconds)
        return hop

    @property
    def label(self) -> str:
        return self.name.lower()


ON_THE_WAY = (Hop.HUB, Hop.POLICY, Hop.SITE, Hop.BINDING, Hop.WORK, Hop.CELL)
WALK = (
    *(Hop.ACCESS, Hop.MANAGER, Hop.NETWORK, Hop.OFFER, Hop.ROLLOUT, Hop.DEPLOYMENT),
    *ON_THE_WAY,
    *(Hop.INSTANCES, Hop.GATES, Hop.RUNTIME, Hop.BACK, Hop.PROJECTION),
)


class State(Enum):
    PASSED = "passed"
    BLOCKED = "blocked"
    UNREAD = "unread"
    NEXT = "next"


class Finding(Struct, frozen=True):
    """What a hop waits for.

    `since` is when the reason began if `exact`, otherwise only when the object stopped being ready. `base` is the same
    without what only events tell, and `dated` whether that is exact: sentences must not depend on how much could be
    read. `grace` is how long this is no trouble at all.
    """

    hop: Hop
    reason: str
    message: str
    acts: Acts | None = None  # instead of what the table of reasons says
    since: datetime | None = None
    exact: bool = False
    grace: timedelta = timedelta(0)
    object: str = ""
    instance: str = ""
    base: datetime | None = None
    dated: bool = False


class Step(Struct, frozen=True):
    hop: Hop
    state: State
    object: str = ""
    since: datetime | None = None


Outcome = Finding | State


class View(Struct, frozen=True, dict=True):
    """One place of a workload; `deployment` is that of the project, None if there is none or nobody could read it."""

    seen: Seen
    now: datetime
    place: Place
    wanted: bool  # whether the spec names the place
    numbers: Counts
    deployment: WorkloadDeployment | None = None
    only: str = ""  # the instance that was asked for

    @property
    def name(self) -> str:
        return self.deployment.name if self.deployment is not None else ""

    @cached_property
    def is_behind(self) -> bool:
        return self.deployment is not None and is_behind(self.seen.workload, self.deployment)

    @cached_property
    def is_answered(self) -> bool:
        """Whether the project has an answer of the site to its newest request. Where there is no site, or the hub
        refuses the deployment, management answers in its place."""
        if self.deployment is None or not observed(self.deployment):
            return False
        found = conditions.of(self.deployment)
        available = conditions.find(found, AVAILABLE)
        is_placeless = available is not None and available.reason == reasons.NO_MATCHING_LOCATION
        is_refused = conditions.is_false(found, FEDERATED) and not self.numbers.replicas
        return not (is_placeless and not self.numbers.replicas) and not is_refused

    @cached_property
    def is_complete(self) -> bool:
        """Whether the newest request was answered with everything ready."""
        now = self.numbers
        counted = now.ready >= now.desired and now.updated >= now.desired and now.replicas <= now.desired
        return observed(self.seen.workload) and self.is_answered and not self.is_behind and counted

    @cached_property
    def hub_copy(self) -> WorkloadDeployment | None:
        return _named(items(self.seen.hub.deployments), self.name)

    @cached_property
    def cell_copy(self) -> WorkloadDeployment | None:
        return _named(items(self.seen.site(self.place.city).deployments), self.name)

    @cached_property
    def projections(self) -> list[Instance]:
        return self.members(self.seen.instances)

    @cached_property
    def instances(self) -> list[Instance]:
        """The instances as the site has them, else as the project shows them."""
        at_site = self.seen.site(self.place.city).instances
        return self.projections if isinstance(at_site, Gap) else self.members(at_site, labelled=True)

    def members(self, part: tuple[Instance, ...] | Gap, *, labelled: bool = False) -> list[Instance]:
        """Instances of the deployment; at a site, those with its label, because anybody can take a name there."""
        found = [
            instance
            for instance in items(part)
            if self.name
            and deployment_of(instance) == self.name
            and (not labelled or DEPLOYMENT_NAME in instance.metadata.labels)
        ]
        return sorted(found, key=lambda instance: (len(instance.name), instance.name))

    @cached_property
    def current(self) -> list[Instance]:
        """Instances of the newest version that are not being deleted."""
        if self.deployment is None:
            return []
        hash_ = template_hash(self.deployment.template_json)
        live = [instance for instance in self.instances if not instance.metadata.deleting]
        return [instance for instance in live if hash_of(instance) in ("", hash_)]

    @cached_property
    def troubled(self) -> list[Instance]:
        """Current instances that are not ready: trouble of an earlier version blocks nothing."""
        candidates = [i for i in self.instances if i.name == self.only] if self.only else self.current
        return [instance for instance in candidates if not is_ready(instance) and not is_going(instance)]

    # When something began

    def plausible(self, moment: datetime | None) -> datetime | None:
        """None for the default of a schema, and for a clock that is ahead."""
        if moment is None or moment.year <= _EPOCH_YEAR or moment > self.now + FUTURE:
            return None
        return moment

    def began(self, name: str, reason: str, condition: Condition | None) -> tuple[datetime | None, bool]:
        """When a reason began, and whether that is exact: a condition's time changes with its status only."""
        newest = max(
            (event for event in items(self.seen.events) if event.about == name and event.reason == reason),
            key=lambda event: (event.last_timestamp is not None, event.last_timestamp or self.now),
            default=None,
        )
        if newest is not None and (first := self.plausible(newest.first_timestamp)) is not None:
            return first, True
        return self.plausible(condition.last_transition_time if condition else None), False


def hash_of(instance: Instance) -> str:
    return instance.spec.controller.template_hash if instance.spec.controller else ""


def is_ready(instance: Instance) -> bool:
    return conditions.is_true(conditions.of(instance), READY)


def is_going(instance: Instance) -> bool:
    return instance_health(instance).state.going


def _named(found: Iterable[WorkloadDeployment], name: str) -> WorkloadDeployment | None:
    return next((deployment for deployment in found if name and deployment.name == name), None)
