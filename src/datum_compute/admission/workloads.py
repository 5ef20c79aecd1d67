"""Which workloads a project may have. Entry point: `admit`."""

from collections.abc import Iterable, Sequence

from datum_compute.api.instance import AVAILABLE
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING, Location, LocationBinding
from datum_compute.api.validation import Facts, workload_violations
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube import conditions
from datum_compute.kube.admission import Review
from datum_compute.kube.errors import Cause


def admit(review: Review) -> Sequence[Cause]:
    if review.resource != WORKLOAD.resource or review.subresource or (after := review.after) is None:
        return ()
    return workload_violations(after, facts_of(review.objects(LOCATION_BINDING)), review.before)


def facts_of(bindings: Iterable[LocationBinding]) -> Facts:
    """A city is offered by any of its bindings, and unavailable when all of them are."""
    closures: dict[str, list[str | None]] = {}
    for binding in bindings:
        city = binding.spec.topology.get(TOPOLOGY_CITY, "")
        if city:
            closures.setdefault(city, []).append(_closure(binding))
    unavailable = {
        city: reasons[0] or "" for city, reasons in closures.items() if all(reason is not None for reason in reasons)
    }
    return Facts(cities=tuple(sorted(closures)), unavailable=unavailable)


def facts_of_locations(locations: Iterable[Location]) -> Facts:
    """The same where bindings are not served: every location is offered."""
    cities = {location.spec.topology.get(TOPOLOGY_CITY, "") for location in locations}
    return Facts(cities=tuple(sorted(filter(None, cities))))


def _closure(binding: LocationBinding) -> str | None:
    """Why a binding cannot be used; None when it can, or does not say."""
    condition = conditions.find(conditions.of(binding), AVAILABLE)
    return condition.message or condition.reason if condition is not None and condition.status == "False" else None
