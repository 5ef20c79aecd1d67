"""All rules of a Workload, and which of them an update answers to. Entry point: `workload_violations`."""

from collections.abc import Iterator
from itertools import islice

from datum_compute.api.labels import CITY_RESTARTS
from datum_compute.api.restarts import is_note
from datum_compute.api.validation.facts import Facts
from datum_compute.api.validation.fields import Field, label_violations
from datum_compute.api.validation.placements import Cities, placement_violations
from datum_compute.api.validation.template import template_violations
from datum_compute.kube.errors import Cause
from datum_compute.kube.meta import Json

_MOST = 250  # causes in one answer, so that no request makes a far larger response


def workload_violations(after: Json, facts: Facts, before: Json | None = None) -> list[Cause]:
    """Everything that is wrong with a Workload, in the order of the contract's table; empty when it is admitted.

    Without `before` it is being created. An update of a Workload that is being deleted is always let through. One that
    leaves the spec as it is answers only for restarts that it notes itself, so that finalizers, labels and annotations
    can be changed whatever the rules say now.
    """
    if before is not None and _is_deleting(before):
        return []
    noted = list(_restart_violations(Field("", after), Field("", before)))
    if before is not None and _same_spec(before, after):
        return noted
    found = noted + list(islice(_violations(Field("", after), facts, Field("", before)), _MOST + 1))
    if len(found) > _MOST:
        more = f"Invalid value: there are more than {_MOST} mistakes; correct those listed first"
        found[_MOST:] = [Cause("FieldValueInvalid", more, "spec")]
    return found


def _violations(after: Field, facts: Facts, before: Field) -> Iterator[Cause]:
    metadata, spec = after["metadata"], after["spec"]
    if before.given:  # its name can no longer be changed
        cities = Cities(facts.cities, {}, _city_codes(before))
    else:
        cities = Cities(facts.cities, facts.unavailable, frozenset())
        if metadata["name"].value:  # a name that is still to be generated comes later
            yield from label_violations(metadata["name"])
    name, uid = metadata["name"].text, metadata["uid"].text
    yield from placement_violations(spec["placements"], name, uid, cities)
    yield from template_violations(spec["template"], facts, before["spec"]["template"])


def _restart_violations(after: Field, before: Field) -> Iterator[Cause]:
    """Of cities, on the workload itself; a note that was there before is not looked at again."""
    note = after["metadata"]["annotations"].entry(CITY_RESTARTS)
    if not note.given or note.value == before["metadata"]["annotations"].entry(CITY_RESTARTS).value:
        return
    if not is_note(note.text):
        yield note.invalid('must be JSON from city code to time, such as {"DFW": "2026-06-01T12:00:00Z"}')


def _is_deleting(workload: Json) -> bool:
    return Field("", workload)["metadata"]["deletionTimestamp"].given


def _same_spec(before: Json, after: Json) -> bool:
    try:
        return bool(Field("", before)["spec"].value == Field("", after)["spec"].value)
    except RecursionError:  # too deep to compare, so not known to be the same
        return False


def _city_codes(workload: Field) -> frozenset[str]:
    placements = workload["spec"]["placements"].elements
    codes = (code.text for placement in placements for code in placement["cityCodes"].elements)
    return frozenset(filter(None, codes))
