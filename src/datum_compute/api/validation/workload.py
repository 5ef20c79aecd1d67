"""All rules for a Workload, and which of them apply to an update. Entry point: `workload_violations`."""

from collections.abc import Iterator
from itertools import islice

from datum_compute.api.labels import CITY_RESTARTS
from datum_compute.api.restarts import is_valid_note
from datum_compute.api.validation.facts import Facts
from datum_compute.api.validation.fields import Field, label_violations
from datum_compute.api.validation.placements import Cities, placement_violations
from datum_compute.api.validation.template import template_violations
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

_MOST = 250  # causes per response, so that no response is much larger than its request


def workload_violations(after: Json, facts: Facts, before: Json | None = None) -> list[Cause]:
    """All violations of a Workload, in a fixed order; empty if it is admitted.

    Without `before` the Workload is being created. Updates of a Workload that is being deleted are always admitted. An
    update that leaves the spec unchanged is checked only for the restarts it adds, so that finalizers, labels and
    annotations can be changed whatever the rules are now.
    """
    if before is not None and _is_deleting(before):
        return []
    restarts = list(_restart_violations(Field("", after), Field("", before)))
    if before is not None and _same_spec(before, after):
        return restarts
    violations = restarts + list(islice(_violations(Field("", after), facts, Field("", before)), _MOST + 1))
    if len(violations) > _MOST:
        more = f"Invalid value: there are more than {_MOST} mistakes; correct those listed first"
        violations[_MOST:] = [Cause("FieldValueInvalid", more, "spec")]
    return violations


def _violations(after: Field, facts: Facts, before: Field) -> Iterator[Cause]:
    metadata, spec = after["metadata"], after["spec"]
    if before.present:  # the name cannot change any more
        cities = Cities(facts.cities, {}, _city_codes(before))
    else:
        cities = Cities(facts.cities, facts.unavailable, frozenset())
        if metadata["name"].value:  # unless the server will generate it
            yield from label_violations(metadata["name"])
    name, uid = metadata["name"].text, metadata["uid"].text
    yield from placement_violations(spec["placements"], name, uid, cities)
    yield from template_violations(spec["template"], facts, before["spec"]["template"])


def _restart_violations(after: Field, before: Field) -> Iterator[Cause]:
    """Checks the note of restarts of single cities, unless it is unchanged."""
    note = after["metadata"]["annotations"].entry(CITY_RESTARTS)
    if not note.present or note.value == before["metadata"]["annotations"].entry(CITY_RESTARTS).value:
        return
    if not is_valid_note(note.text):
        yield note.invalid('must be JSON from city code to time, such as {"DFW": "2026-06-01T12:00:00Z"}')


def _is_deleting(workload: Json) -> bool:
    return Field("", workload)["metadata"]["deletionTimestamp"].present


def _same_spec(before: Json, after: Json) -> bool:
    try:
        return bool(Field("", before)["spec"].value == Field("", after)["spec"].value)
    except RecursionError:  # too deep to compare, so assumed to differ
        return False


def _city_codes(workload: Field) -> frozenset[str]:
    placements = workload["spec"]["placements"].elements
    codes = (code.text for placement in placements for code in placement["cityCodes"].elements)
    return frozenset(filter(None, codes))
