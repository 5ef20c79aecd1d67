"""What is really so on all planes, read from the raw objects. Entry points: `Reality`, `Timeline`.

Written without anything of `datum_compute.answers`, whose sentences are held against it.
"""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.names import claim_name
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.storage.store import Store
from datum_compute.kube.kinds import CONFIG_MAP, Kind
from datum_compute.kube.meta import Json

GROUP = "compute.datumapis.com"
Place = tuple[str, str]  # placement and city


@lru_cache(maxsize=10_000)
def _decoded(value: bytes) -> Json:
    """Shared by all revisions at which an object was the same."""
    found: Json = json.loads(value)
    return found


def is_going(object_: Json) -> bool:
    return bool(object_["metadata"].get("deletionTimestamp"))


def condition(object_: Json, type_: str) -> tuple[str, str]:
    """Status and reason; empty texts when there is none."""
    for found in (object_.get("status") or {}).get("conditions") or ():
        if found["type"] == type_:
            return found["status"], found["reason"]
    return "", ""


def is_ready(instance: Json) -> bool:
    return not is_going(instance) and condition(instance, "Ready")[0] == "True"


def image_of(spec: Json) -> str:
    """Of an Instance, or of the template of a Workload."""
    return str(spec["runtime"]["sandbox"]["containers"][0]["image"])


def restarted_at(object_: Json) -> str:
    """When an Instance, or what a template describes, was last started anew; empty when it never was."""
    return str(((object_.get("metadata") or {}).get("annotations") or {}).get(f"{GROUP}/restartedAt", ""))


def places(workload: Json) -> dict[Place, int]:
    """Every place that the spec names, with the instances it asks for there."""
    return {
        (placement["name"], city): placement["scaleSettings"]["minReplicas"]
        for placement in workload["spec"]["placements"]
        for city in placement["cityCodes"]
    }


def is_paused(workload: Json) -> bool:
    return (workload["metadata"].get("annotations") or {}).get(f"{GROUP}/rollout-paused") == "true"


class Reality:
    """All planes at one revision of the store."""

    def __init__(self, store: Store, project: str, cells: dict[str, str], at: int | None = None) -> None:
        self._store = store
        self._project = project
        self._cells = cells
        self._at = at
        self._past: dict[tuple[str, str], list[Json]] = {}  # by plane and resource: what is past does not change

    def _scan(self, plane: str, kind: Kind[Any]) -> list[Json]:
        if self._at is None:
            return [record.object() for _, record in self._store.scan(plane, kind.resource)]
        key = (plane, kind.resource)
        if key not in self._past:
            self._past[key] = [_decoded(record.value) for _, record in self._store.scan(*key, at=self._at)]
        return self._past[key]

    # In the project

    def workloads(self) -> dict[str, Json]:
        return {found["metadata"]["name"]: found for found in self._scan(self._project, WORKLOAD)}

    def projections(self) -> dict[str, Json]:
        """The Instances that the project has."""
        return {found["metadata"]["name"]: found for found in self._scan(self._project, INSTANCE)}

    def deployments(self) -> list[Json]:
        return self._scan(self._project, WORKLOAD_DEPLOYMENT)

    def is_unrecorded(self, workload: Json) -> bool:
        """Whether its spec is another than that of its newest revision, a restart aside."""
        name = f"{GROUP}-revision-history.{workload['metadata']['name']}"
        found = [item for item in self._scan(self._project, CONFIG_MAP) if item["metadata"]["name"] == name]
        if not found:
            return False
        current = found[0]["metadata"]["annotations"][f"{GROUP}/current-revision"]
        recorded = json.loads(json.loads(found[0]["data"][current])["spec"])
        return _timeless(recorded) != _timeless(workload["spec"])

    def is_denied(self, instance: str) -> bool:
        """Whether the project's quota has no room for it."""
        claims = {found["metadata"]["name"]: found for found in self._scan(self._project, RESOURCE_CLAIM)}
        claim = claims.get(claim_name(instance))
        return claim is not None and condition(claim, "Granted")[0] == "False"

    # In the cells

    def instances(self, city: str = "") -> list[Json]:
        cities = [city] if city else list(self._cells)
        return [found for city in cities if city in self._cells for found in self._scan(self._cells[city], INSTANCE)]

    def instance(self, name: str) -> Json | None:
        return next((found for found in self.instances() if found["metadata"]["name"] == name), None)

    def of(self, workload: Json, place: Place | None = None) -> list[Json]:
        """The instances of a workload, of one of its places where one is named."""
        uid = workload["metadata"]["uid"]
        found = [item for item in self.instances() if item["metadata"]["labels"].get(f"{GROUP}/workload-uid") == uid]
        return [item for item in found if place is None or _place(item) == place]

    def serving(self, workload: Json, place: Place | None = None) -> list[Json]:
        """Those that are ready, made for a deployment that the project has.

        A site that cannot be reached goes on running what the project has withdrawn. Nobody there can know of it, and
        it makes up for nothing that is asked of the site later.
        """
        return [item for item in self.of(workload, place) if is_ready(item) and self._is_asked_for(item)]

    def ready(self, workload: Json, place: Place) -> int:
        return len(self.serving(workload, place))

    def _is_asked_for(self, instance: Json) -> bool:
        uid = instance["metadata"]["labels"][f"{GROUP}/workload-deployment-uid"]
        deployments = self._scan(self._cells[_place(instance)[1]], WORKLOAD_DEPLOYMENT)
        copy = next((item for item in deployments if item["metadata"]["uid"] == uid), None)
        upstream = copy["metadata"]["annotations"][f"{GROUP}/upstream-uid"] if copy else ""
        return any(item["metadata"]["uid"] == upstream for item in self.deployments())

    def newest(self, workload: Json, place: Place) -> int:
        """Those that were made from the newest template and are there to stay."""
        return sum(not is_going(item) and self._is_newest(item, workload) for item in self.of(workload, place))

    def old(self, workload: Json, place: Place) -> int:
        """Those that were made from an earlier template."""
        return sum(not self._is_newest(item, workload) for item in self.of(workload, place))

    def _is_newest(self, instance: Json, workload: Json) -> bool:
        """Whether it has the image that the workload has now, and was started anew since that was last asked.

        A deployment keeps a restart that it was asked for also when the workload goes back to a template without it.
        """
        template = workload["spec"]["template"]
        uid, place = workload["metadata"]["uid"], _place(instance)
        here = [
            deployment["spec"]["template"]
            for deployment in self.deployments()
            if deployment["spec"]["workloadRef"]["uid"] == uid and _place_of(deployment) == place
        ]
        restarted = max(map(restarted_at, (template, *here)))
        return image_of(instance["spec"]) == image_of(template["spec"]) and restarted_at(instance) >= restarted

    def is_done(self, workload: Json, place: Place) -> bool:
        """Whether a place has exactly what is asked for, of the newest version, and all of it ready."""
        found = self.of(workload, place)
        fits = len(found) == places(workload).get(place, 0)
        return fits and all(is_ready(item) and self._is_newest(item, workload) for item in found)

    def is_fulfilled(self, workload: Json) -> bool:
        return all(self.is_done(workload, place) for place in places(workload))


def _timeless(spec: Json) -> Json:
    template: Json = spec["template"]
    annotations = dict((template.get("metadata") or {}).get("annotations") or {})
    annotations.pop(f"{GROUP}/restartedAt", None)
    return spec | {"template": template | {"metadata": annotations}}


def _place(instance: Json) -> Place:
    labels = instance["metadata"]["labels"]
    return labels[f"{GROUP}/placement-name"], labels[f"{GROUP}/city-code"]


def _place_of(deployment: Json) -> Place:
    return deployment["spec"]["placementName"], deployment["spec"]["cityCode"]


class Timeline:
    """Reality now, and as it was at any moment of the last seconds: news from a cell takes a while to the project."""

    def __init__(self, store: Store, project: str, cells: dict[str, str]) -> None:
        self._store = store
        self._project = project
        self._cells = cells
        self._marks: list[tuple[float, int]] = []
        self._past: dict[int, Reality] = {}  # by revision
        self.now = Reality(store, project, cells)

    def mark(self, time: float) -> None:
        """Called now and then, so that a time can be told from a revision."""
        if not self._marks or self._marks[-1][1] != self._store.revision:
            self._marks.append((time, self._store.revision))

    def at(self, time: float) -> Reality:
        """As it was then, to within the time between two marks."""
        return self._reality(self._revision(time))

    def ever(self, since: float, is_so: Callable[[Reality], bool]) -> bool:
        """Whether it has been so at any moment since then."""
        return is_so(self.now) or any(is_so(then) for then in self._since(since))

    def between(self, since: float, counted: Callable[[Reality], int], reported: int) -> bool:
        """Whether a number is one that was true since then, or lies between two that were."""
        actual = counted(self.now)
        if reported == actual:
            return True
        least = most = actual
        for then in self._since(since):
            actual = counted(then)
            least, most = min(least, actual), max(most, actual)
            if least <= reported <= most:
                return True
        return False

    def _since(self, since: float) -> Iterator[Reality]:
        for revision in range(self._store.revision - 1, self._revision(since) - 1, -1):
            yield self._reality(revision)

    def _reality(self, revision: int) -> Reality:
        if revision not in self._past:
            self._past[revision] = Reality(self._store, self._project, self._cells, revision)
        return self._past[revision]

    def _revision(self, time: float) -> int:
        return next((revision for moment, revision in reversed(self._marks) if moment <= time), self._marks[0][1])
