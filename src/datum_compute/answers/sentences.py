"""The sentence that names the cause, the same wherever it is printed. Entry points: `head`, `age_text`, `shape`.

It says nothing that depends on how much could be read beyond the workload, its deployments and its instances.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from datum_compute.answers.hops import Finding, Hop
from datum_compute.answers.walk import City, Verdict
from datum_compute.api import reasons
from datum_compute.api.reasons import Acts, explain

if TYPE_CHECKING:
    from datum_compute.answers.why import Block

_NOUNS = {
    reasons.IMAGE_UNAVAILABLE: "its image",
    reasons.INSTANCE_CRASHING: "a process that keeps exiting",
    reasons.CONFIGURATION_ERROR: "its configuration",
    reasons.SITE_AWAY: "a site that does not answer",
    reasons.NO_MATCHING_LOCATION: "a missing site",
    reasons.DEPLOYMENT_NAME_TAKEN: "a name that is taken",
    reasons.INSTANCE_NAME_TAKEN: "a name that is taken",
    reasons.SPEC_REFUSED: "a refusal",
    reasons.WRITE_FORBIDDEN: "a refusal",
    reasons.PROJECT_SUSPENDED: "the suspension of its project",
    reasons.NETWORK_FAILED_TO_CREATE: "its network",
}
_NOUNS_OF_HOPS = {
    Hop.ACCESS: "missing access",
    Hop.MANAGER: "a platform that does not answer",
    Hop.NETWORK: "a missing network",
    Hop.OFFER: "a city that is not offered",
    Hop.ROLLOUT: "a pause",
    Hop.DEPLOYMENT: "a platform that does not answer",
    Hop.HUB: "the way to its site",
    Hop.WAY: "the way to its site",
    Hop.POLICY: "its route",
    Hop.SITE: "its site",
    Hop.BINDING: "its route",
    Hop.WORK: "its site",
    Hop.CELL: "a site that does not act",
    Hop.INSTANCES: "its instances",
    Hop.GATES: "quota",
    Hop.RUNTIME: "its runtime",
    Hop.BACK: "a status that does not come back",
    Hop.PROJECTION: "instances that are not shown",
    Hop.DELETION: "its deletion",
}
_WHO_ACTS = {
    Acts.YOU: "You can act.",
    Acts.ADMIN: "Whoever gives access in your organization can act.",
    Acts.PLATFORM: "The platform has to act.",
    Acts.STALLED: "No cause was reported.",
    Acts.WAIT: "Nothing to do.",
    Acts.UNKNOWN: "It is not known who can act.",
}
_PROJECT_WIDE = (Hop.ACCESS, Hop.MANAGER, Hop.NETWORK, Hop.DELETION)
_NAMES = re.compile(r"[\w.-]*\d[\w.-]*")


def head(name: str, blocks: Sequence["Block"], cities: Sequence[City], now: datetime, revision: int) -> str:
    """The sentence about the first cause, and how many others there are."""
    if not blocks:
        return _fine(name, cities, revision)
    first = blocks[0].first
    finding = first.finding
    assert finding is not None
    where = "" if finding.hop in _PROJECT_WIDE else f" in {_listed([city.place.city for city in blocks[0].cities])}"
    match first.verdict:
        case Verdict.DELETING:
            text = f"{name} is being deleted: it {finding.message}{_for(finding, now)}. {_WHO_ACTS[first.acts]}"
        case Verdict.UNKNOWN:
            text = f"It is not known what holds up {name}{where}: {finding.message}."
        case Verdict.WAITING:
            normal = f"; normal under {age_text(first.normal)}" if first.normal else ""
            text = f"{name} is on its way{where}: {_meaning(finding)}{_for(finding, now)}{normal}. Nothing to do."
        case Verdict.STALLED:
            normal = f"; normal under {age_text(first.normal)}" if first.normal else ""
            text = f"{name} is stuck{where}: {_meaning(finding)}{_for(finding, now)}{normal}. No cause was reported."
        case _:
            noun = _noun(finding)
            count = _share(blocks[0])
            text = f"{name} is held up{where} by {noun}{count}{_since(finding, now)}. {_WHO_ACTS[first.acts]}"
    others = len(blocks) - 1
    return f"{text} {others} other {'cause' if others == 1 else 'causes'}." if others else text


def _fine(name: str, cities: Sequence[City], revision: int) -> str:
    desired, ready = sum(city.desired for city in cities), sum(city.ready or 0 for city in cities)
    count = len({city.place.city for city in cities})
    where = f"{count} {'city' if count == 1 else 'cities'}"
    version = f"run revision #{revision}" if revision else "run the newest version"
    return f"Nothing blocks {name}: {ready} of {desired} instances in {where} {version}."


def _noun(finding: Finding) -> str:
    if finding.hop is Hop.GATES and finding.reason == reasons.SCHEDULING_GATES_PRESENT:
        return "a gate that nobody removes"
    return _NOUNS.get(finding.reason) or _NOUNS_OF_HOPS[finding.hop]


def _meaning(finding: Finding) -> str:
    sentence = explain(finding.reason).sentence.rstrip(".") or finding.message
    return sentence[:1].lower() + sentence[1:]


def _share(block: "Block") -> str:
    """How many instances are missing in the cities of the block, where that is known."""
    if any(city.ready is None for city in block.cities) or not block.missing:
        return ""
    return f" ({block.missing} of {sum(city.desired for city in block.cities)} instances)"


def _since(finding: Finding, now: datetime) -> str:
    """Since when, if that is when the reason began; else for how long it has not been ready."""
    since = finding.base
    if since is None:
        return ""
    if finding.dated:
        return f", since {since.astimezone(now.tzinfo):%H:%M} ({age_text(now - since)})"
    return f", not ready for {age_text(now - since)}"


def _for(finding: Finding, now: datetime) -> str:
    return f", for {age_text(now - finding.base)}" if finding.base is not None else ""


def _listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) > 3:
        return f"{len(names)} cities"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def age_text(age: timedelta) -> str:
    """A duration in its largest whole unit."""
    seconds = max(int(age.total_seconds()), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def shape(message: str, city: str) -> str:
    """A message without the names and numbers that differ between cities."""
    text = message.replace(city, "*") if city else message
    return _NAMES.sub("*", text)
