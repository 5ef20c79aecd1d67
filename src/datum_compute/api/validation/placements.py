"""Rules for the placements of a workload. Entry point: `placement_violations`."""

from collections.abc import Iterator

from msgspec import Struct

from datum_compute.api.names import deployment_name
from datum_compute.api.validation.fields import Field, clipped, name_violations, quantity_violations
from datum_compute.kube.errors import Cause

_MOST_REPLICAS = 1000
_POLICIES = ("OrderedReady",)
_METRICS = ("cpu",)


class Cities(Struct, frozen=True):
    """The city codes that are admitted."""

    offered: tuple[str, ...] | None
    unavailable: dict[str, str]
    previous: frozenset[str]  # already in the workload, and admitted even if they are no longer offered

    def violations(self, code: Field) -> Iterator[Cause]:
        if code.text in self.previous:
            return
        if self.offered is not None and code.text not in self.offered:
            yield self._refused(code, "")
        elif code.text in self.unavailable:
            yield self._refused(code, f"not available now: {clipped(self.unavailable[code.text], 200)}")

    def _refused(self, code: Field, why: str) -> Cause:
        usable = [city for city in self.offered or () if city not in self.unavailable]
        return code.unsupported(usable, why or ("" if usable else "no city is available to this project"))


def placement_violations(placements: Field, workload: str, uid: str, cities: Cities) -> Iterator[Cause]:
    if not placements.elements:
        yield placements.required("say in which cities to run, and how many instances")
    names: set[str] = set()
    deployments: dict[str, str] = {}
    for placement in placements.elements:
        first = placement["name"].text not in names
        yield from name_violations(placement["name"], names, "placement")
        if not placement["cityCodes"].elements:
            yield placement["cityCodes"].required("name at least one city")
        codes: set[str] = set()
        for code in placement["cityCodes"].elements:
            yield from cities.violations(code)
            if code.text in codes:
                yield code.duplicate("name each city once")
            elif first and code.text:
                yield from _deployment_violations(code, placement["name"].text, (workload, uid), deployments)
            codes.add(code.text)
        yield from _scale_violations(placement["scaleSettings"])


def _deployment_violations(
    code: Field, placement: str, workload: tuple[str, str], taken: dict[str, str]
) -> Iterator[Cause]:
    """No two cities may lead to the same deployment name, as a-b in C and a in B-C would, or DFW and dfw."""
    name = deployment_name(*workload, placement, code.text)
    place = f'city "{clipped(code.text)}" of placement "{clipped(placement)}"'
    if name in taken:
        yield code.duplicate(f"would share deployment {name} with {taken[name]}; rename the placement")
    taken.setdefault(name, place)


def _scale_violations(scale: Field) -> Iterator[Cause]:
    least, most = scale["minReplicas"], scale["maxReplicas"]
    if least.integer is None or not 1 <= least.integer <= _MOST_REPLICAS:
        yield least.invalid(f"must be a whole number from 1 to {_MOST_REPLICAS}")
    if most.present and (most.integer is None or most.integer < (least.integer or 1)):
        yield most.invalid("must be a whole number not less than minReplicas")
    policy = scale["instanceManagementPolicy"]
    if policy.present and policy.text not in _POLICIES:
        yield policy.unsupported(_POLICIES)
    if most.present:
        if not scale["metrics"].elements:
            yield scale["metrics"].required("maxReplicas needs at least one metric to scale by")
        for metric in scale["metrics"].elements:
            yield from _metric_violations(metric["resource"])


def _metric_violations(resource: Field) -> Iterator[Cause]:
    if not resource.is_object:
        yield resource.required("say which resource to measure")
        return
    if resource["name"].text not in _METRICS:
        yield resource["name"].unsupported(_METRICS)
    target = resource["target"]
    targets = [kind for kind in ("value", "averageValue", "averageUtilization") if target[kind].present]
    if not targets:
        yield target.required("give one of value, averageValue, averageUtilization")
        return
    first, *others = targets
    if first == "averageUtilization":
        if (target[first].integer or 0) < 1:
            yield target[first].invalid("must be a percentage of at least 1")
    else:
        yield from quantity_violations(target[first])
    for other in others:
        yield target[other].forbidden(f"only one target is allowed, and {first} is set")
