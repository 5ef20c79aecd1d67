"""Whatever could be read, there is an answer, and reading more never makes it less specific."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from datum_compute.answers.advice import advice
from datum_compute.answers.document import document
from datum_compute.answers.hops import Hop
from datum_compute.answers.seen import Gap, Hub, Seen, Site
from datum_compute.answers.walk import City, Verdict
from datum_compute.answers.why import why
from datum_compute.kube.meta import encode
from tests.answers.sightings import CITIES, event, everything, instance
from tests.answers.test_why import CASES
from tests.cli.conftest import NOW, condition

_PROJECT = ("deployments", "instances", "entitlements", "networks", "offers", "claims", "events", "lease")
_HUB = ("namespace", "deployments", "policies", "clusters", "bindings", "instances")
_SITE = ("deployments", "instances")

cases = st.sampled_from([{}, *(case[0] for case in CASES.values())]).map(lambda parts: replace(everything(), **parts))
unread = st.sampled_from([Gap.DENIED, Gap.NOT_ASKED])
gaps = st.sampled_from(list(Gap))
instances = st.sampled_from(["", "shop-default-dfw-1", "no-such"])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments = st.integers(-86400, 250_000_000_000).map(lambda seconds: EPOCH + timedelta(seconds=seconds))


@st.composite
def masks(draw: st.DrawFn, gap: st.SearchStrategy[Gap]) -> dict[tuple[str, str], Gap]:
    """Some parts, and what they are replaced with."""
    every = [("", part) for part in _PROJECT] + [("hub", part) for part in _HUB]
    every += [(city, part) for city in CITIES for part in _SITE]
    return draw(st.dictionaries(st.sampled_from(every), gap, max_size=len(every)))


def masked(seen: Seen, mask: dict[tuple[str, str], Gap]) -> Seen:
    project = {part: gap for (where, part), gap in mask.items() if not where}
    hub = {part: gap for (where, part), gap in mask.items() if where == "hub"}
    sites = {
        city: replace(seen.site(city), **{part: gap for (where, part), gap in mask.items() if where == city})
        for city in CITIES
    }
    changed: dict[str, Any] = project | {"hub": replace(seen.hub, **hub), "sites": sites}
    return replace(seen, **changed)


def specificity(city: City) -> int:
    if city.verdict is Verdict.UNKNOWN:
        return 0
    return 1 if city.finding is not None and city.finding.hop is Hop.WAY else 2


@given(cases, masks(gaps), moments, instances)
def test_any_part_may_be_missing_at_any_time(
    seen: Seen, mask: dict[tuple[str, str], Gap], now: datetime, instance_: str
) -> None:
    answer = why(masked(seen, mask), now, instance_)
    assert answer.sentence.endswith(".")
    text = document(answer, advice(answer, "shop"), now, program="compute", ask="")
    assert encode(text)
    for city in answer.cities:
        assert (city.finding is None) == (city.verdict is Verdict.FINE)


@given(cases, masks(unread), masks(unread))
def test_more_access_never_makes_the_answer_less_specific(
    seen: Seen, less: dict[tuple[str, str], Gap], more: dict[tuple[str, str], Gap]
) -> None:
    poorer = masked(seen, less | more)
    richer = masked(seen, more)
    for before, after in zip(why(poorer, NOW).cities, why(richer, NOW).cities, strict=False):
        if before.place == after.place:
            assert specificity(after) >= specificity(before)


@given(st.lists(moments, max_size=4), moments, moments)
def test_any_clock_gives_an_answer(times: list[datetime], now: datetime, server: datetime) -> None:
    broken = tuple(
        instance("DFW", ordinal, condition("Ready", "False", "InstanceCrashing", since=moment))
        for ordinal, moment in enumerate(times)
    )
    events = tuple(event("shop-default-dfw-0", "InstanceCrashing", first=moment) for moment in times)
    seen = replace(everything(), instances=broken, events=events, server_time=server, hub=Hub(), sites={"DFW": Site()})
    for city in why(seen, now).cities:
        since = city.finding.since if city.finding else None
        reference = now if abs(server - now) <= timedelta(seconds=5) else server
        assert since is None or (since.year > 1970 and since <= reference + timedelta(seconds=60))
