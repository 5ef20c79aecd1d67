"""Which sentences of the command's screens are not so. Entry point: `Screens`.

Written without anything of `datum_compute.answers`, whose sentences are judged here.
"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from datum_compute.kube.meta import Json
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.command import Result
from tests.scenarios.reality import (
    GROUP,
    Place,
    Reality,
    Timeline,
    condition,
    image_of,
    is_going,
    is_paused,
    is_ready,
    places,
)

LAG_SECONDS = 3.0  # until what happens in a cell has reached the project


class Screens:
    """Each check yields what is wrong, in words.

    A statement about a cell has to have been true at some moment since `since`, because news of what happened later may
    not have reached the project; what is called done has to be true now. `at_rest`, nothing changes any more.
    """

    def __init__(self, timeline: Timeline, simulation: Simulation, since: float, *, at_rest: bool) -> None:
        self._timeline = timeline
        self._simulation = simulation
        self._since = since
        self._at_rest = at_rest

    def _ever(self, holds: Callable[[Reality], bool]) -> bool:
        return self._timeline.ever(self._since, holds)

    def of_workloads(self, out: str) -> Iterator[str]:
        workloads = self._timeline.now.workloads()
        rows = {row["NAME"]: row for row in table(out)}
        if rows.keys() != workloads.keys():
            yield f"lists {sorted(rows)}, there are {sorted(workloads)}"
        for name, workload in workloads.items():
            row = rows[name]
            yield from self._of_health(row["HEALTH"], "", workload)
            ready, desired = row["READY"].split("/")
            if int(desired) != sum(places(workload).values()):
                yield f"desired is {desired}"
            if not is_going(workload) and not self._is_sum(int(ready), workload, Reality.ready):
                yield f"ready is {ready}"
            if row["UP-TO-DATE"] != "—":
                updated = int(row["UP-TO-DATE"].split("/")[0])
                if updated > sum(self._timeline.now.newest(workload, place) for place in places(workload)):
                    yield f"up-to-date is {updated}"
        if workloads:
            counted = dict(reversed(pair) for pair in re.findall(r"(\d+) ([A-Z]\w+)", out.splitlines()[-1]))
            for state, number in counted.items():
                if int(number) != sum(row["HEALTH"] == state for row in rows.values()):
                    yield f"{number} are {state}"

    def _is_sum(self, number: int, workload: Json, counted: Callable[[Reality, Json, Place], int]) -> bool:
        def total(reality: Reality) -> int:
            return sum(counted(reality, workload, place) for place in places(workload))

        return self._timeline.between(self._since, total, number)

    def _of_health(self, state: str, detail: str, workload: Json) -> Iterator[str]:
        requested = places(workload)

        def all_ready(reality: Reality) -> bool:
            return all(reality.ready(workload, place) >= wanted for place, wanted in requested.items())

        def none_ready(reality: Reality) -> bool:
            return not reality.serving(workload)

        match state:
            case "Deleting":
                holds = is_going(workload)
            case _ if is_going(workload):
                holds = False
            case "Paused":
                holds = is_paused(workload)
            case "Available":
                holds = not is_paused(workload) and self._ever(all_ready)
            case "Degraded":
                holds = self._ever(lambda reality: not all_ready(reality))
            case "Unavailable":
                holds = self._ever(none_ready)
            case "Unknown":
                holds = not (workload.get("status") or {}).get("conditions")
            case _:
                holds = False
        if not holds:
            yield f"it is not {state}"
        if ("paused" in detail.lower() or state == "Paused") and not is_paused(workload):
            yield "it is not paused"
        if detail == "all placements at desired replicas" and not self._timeline.now.is_fulfilled(workload):
            yield "not all placements are at desired replicas"
        if below := re.match(r"(\d+) instances below desired count", detail):
            missing = int(below[1])

            def lacking(reality: Reality) -> int:
                return sum(max(wanted - reality.ready(workload, place), 0) for place, wanted in requested.items())

            if not self._timeline.between(self._since, lacking, missing):
                yield f"it does not lack {missing}"
        if newest := re.match(r"(\d+) of (\d+) instances on the newest version", detail):
            if int(newest[1]) > sum(self._timeline.now.newest(workload, place) for place in requested):
                yield f"fewer than {newest[1]} are on the newest version"
            if int(newest[2]) != sum(requested.values()):
                yield f"{newest[2]} are not asked for"
        if state == "Deleting" and detail.startswith("waiting for ") and "finalizer" not in detail:
            left = {found["spec"]["cityCode"] for found in self._timeline.now.deployments()}
            if set(detail.removeprefix("waiting for ").split(", ")) != left:
                yield f"deployments are left in {sorted(left)}"

    def of_status(self, result: Result) -> Iterator[str]:
        workload = self._timeline.now.workloads().get("web")
        if workload is None:
            if result.code != 3:
                yield f"there is none, and it ended with {result.code}"
            return
        lines = result.out.splitlines()
        facts = {line.split()[0]: line[13:] for line in lines if re.match(r"[A-Z][a-z]+ {2,}", line)}
        if facts["Image"].strip() != image_of(workload["spec"]["template"]["spec"]):
            yield "it has another image"
        state, _, detail = facts["Health"].partition(" — ")
        yield from self._of_health(state, detail, workload)
        when, _, revision = facts["Updated"].partition("Revision ")
        yield from self._of_time(when.strip(), workload)
        if ("*" in revision) is not self._timeline.now.is_unrecorded(workload):
            yield f"it is not revision {revision}"
        requested = places(workload)
        for row in table(result.out, "CITY"):
            place = ("default", row["CITY"])
            if row["DESIRED"] != str(requested.get(place, 0)):
                yield f"{place} shall not have {row['DESIRED']}"
            if row["READY"] == "—":
                here = [found for found in self._timeline.now.deployments() if found["spec"]["cityCode"] == row["CITY"]]
                if any(found.get("status") for found in here):
                    yield f"{place} has a deployment that reports"
                continue
            ready, replicas = map(int, row["READY"].split("/"))
            if is_going(workload):
                continue
            if not self._timeline.between(self._since, partial(_ready, workload=workload, place=place), ready):
                yield f"{place} has not {ready} ready"
            if not self._timeline.between(self._since, partial(_there, workload=workload, place=place), replicas):
                yield f"{place} has not {replicas} replicas"
            if (" [degraded]" in row["line"]) is not (ready < requested.get(place, 0)):
                yield f"{place} is marked wrongly"
        for line in lines:
            if trouble := re.fullmatch(r"  ([A-Z]{3}): (\d+) instances (not ready|could not start) — (.+)", line):
                yield from self._of_trouble(workload, trouble[1], int(trouble[2]), trouble[3], trouble[4])
        if self._at_rest and not is_going(workload) and not is_paused(workload):
            is_done = detail == "all placements at desired replicas"
            if is_done is not self._timeline.now.is_fulfilled(workload):
                yield f"at rest it is {'not ' if is_done else ''}as asked for"

    def _of_time(self, age: str, workload: Json) -> Iterator[str]:
        """The time of the last change is that of the newest generation, or left out."""
        generation, now = workload["metadata"]["generation"], self._simulation.time()
        if age == "—":
            return
        number, unit = re.fullmatch(r"(\d+)([smhd]) ago", age).groups()  # type: ignore[union-attr]
        seconds = int(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]

        def was_there(reality: Reality) -> bool:
            found = reality.workloads().get("web")
            same = found is not None and found["metadata"]["uid"] == workload["metadata"]["uid"]
            return same and found is not None and found["metadata"]["generation"] >= generation

        if not was_there(self._timeline.at(now - seconds + 1)):
            yield f"it was changed later than {age}"
        earlier = now - seconds - {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] - 1
        if earlier > 0 and was_there(self._timeline.at(earlier)):
            yield f"it was changed earlier than {age}"

    def _of_trouble(self, workload: Json, city: str, number: int, what: str, cause: str) -> Iterator[str]:
        place = ("default", city)
        wanted = places(workload).get(place, 0)

        def lacking(reality: Reality) -> int:
            return max(wanted - reality.ready(workload, place), 0)

        if not is_going(workload) and not self._timeline.between(self._since, lacking, number):
            yield f"{city} does not lack {number}"

        def has(holds: Callable[[Json], bool]) -> bool:
            return self._ever(lambda reality: any(map(holds, reality.of(workload, place))))

        def failed(reason: str) -> bool:
            return has(lambda one: condition(one, "Ready")[1] == reason)

        match cause:
            case "quota exceeded":
                names = {f"web-default-{city.lower()}-{ordinal}" for ordinal in range(wanted)}

                def denied(reality: Reality) -> bool:
                    # Also one that is no longer wanted, until it has gone.
                    surplus = {item["metadata"]["name"] for item in reality.instances(city)}
                    return any(map(reality.is_denied, names | surplus))

                holds = self._ever(denied)
            case "image unavailable":
                holds = failed("ImageUnavailable")
            case "instance crashing":
                holds = failed("InstanceCrashing")
            case "configuration error":
                holds = failed("ConfigurationError")
            case "stopping" | "terminating" | "Stopping":
                holds = self._ever(lambda reality: any(map(is_going, reality.instances(city))))
            case "not set up yet":
                holds = not any(found["spec"]["cityCode"] == city for found in self._timeline.now.deployments())
            case "not reported yet":
                holds = not self._at_rest
            case _:
                holds = what == "not ready" and (not self._at_rest or number > 0)
        if not holds:
            yield f"{city} does not wait because of: {cause}"

    def of_rollout(self, result: Result) -> Iterator[str]:
        workload = self._timeline.now.workloads().get("web")
        if workload is None or is_going(workload):
            expected = 3 if workload is None else 1
            if result.code != expected or (workload is not None and "is being deleted" not in result.err):
                yield f"of what is {'going' if workload else 'gone'} it ended with {result.code}"
            return
        if ("is paused" in result.out) is not is_paused(workload):
            yield "it is paused, or not"
        for row in table(result.out, "PLACEMENT"):
            if not row["line"].startswith("    "):  # why the one above is blocked
                yield from self._of_row(row, workload, (row["PLACEMENT"], row["CITY"]))

    def _of_row(self, row: dict[str, str], workload: Json, place: Place) -> Iterator[str]:
        if row["DESIRED"] != str(places(workload).get(place)):
            yield f"{place} shall not have {row['DESIRED']}"
        if not self._timeline.between(self._since, partial(_ready, workload=workload, place=place), int(row["READY"])):
            yield f"{place} has not {row['READY']} ready"
        if row["OLD"] != "—" and not self._timeline.between(
            self._since, lambda reality: reality.old(workload, place), int(row["OLD"])
        ):
            yield f"{place} has not {row['OLD']} of an earlier version"
        if row["UPDATED"] != "—" and not self._ever(
            lambda reality: reality.newest(workload, place) >= int(row["UPDATED"])
        ):
            yield f"{place} has fewer than {row['UPDATED']} of the newest version"
        if row["PHASE"] == "Done" and not self._timeline.now.is_done(workload, place):
            yield f"{place} is not done"
        if self._at_rest and row["PHASE"] != "Done" and self._timeline.now.is_done(workload, place):
            yield f"at rest {place} is done, not {row['PHASE']}"

    def of_instances(self, out: str) -> Iterator[str]:
        projections = self._timeline.now.projections()
        rows = {row["NAME"]: row for row in table(out)} if projections else {}
        if rows.keys() != projections.keys():
            yield f"lists {sorted(rows)}, there are {sorted(projections)}"
        for name, row in rows.items():
            if not self._ever(partial(_is_in_state, name=name, state=row["STATUS"])):
                yield f"{name} is not {row['STATUS']}"
            yield from self._of_age(name, row["AGE"])
        if self._at_rest:
            there = {item["metadata"]["name"] for item in self._timeline.now.instances()}
            if there != rows.keys():
                yield f"shows {sorted(rows)}, there are {sorted(there)}"

    def _of_age(self, name: str, age: str) -> Iterator[str]:
        found = self._timeline.now.instance(name)
        if found is None or is_going(found):
            return  # one that is gone has no age, and its name may be another's in a moment
        made = self._simulation.now() - timestamp(found["metadata"]["creationTimestamp"])
        number, unit = int(age[:-1]), {"s": 1, "m": 60, "h": 3600}[age[-1]]
        least, most = number * unit - 1 - (self._simulation.time() - self._since), (number + 1) * unit + LAG_SECONDS
        if not least <= made.total_seconds() <= most and self._since >= self._simulation.time() - LAG_SECONDS:
            yield f"{name} is {made} old, not {age}"


def table(text: str, first: str = "NAME") -> Iterator[dict[str, str]]:
    """The rows of a table by the titles of its columns, and each as the line that it is."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.split()[:1] == [first]), len(lines))
    titles = (
        [(match[0], match.start()) for match in re.finditer(r"\S+(?: \S+)*", lines[start])] if lines[start:] else []
    )
    for line in lines[start + 1 :]:
        if not line.strip():
            return
        ends = [begin for _, begin in titles[1:]] + [len(line)]
        yield {title: line[begin:end].strip() for (title, begin), end in zip(titles, ends, strict=True)} | {
            "line": line
        }


def timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _ready(reality: Reality, workload: Json, place: Place) -> int:
    return reality.ready(workload, place)


def _there(reality: Reality, workload: Json, place: Place) -> int:
    """Also what an earlier workload of the same name has left to be stopped."""
    uid = workload["metadata"]["uid"]
    earlier = [
        item for item in reality.instances(place[1]) if item["metadata"]["labels"][f"{GROUP}/workload-uid"] != uid
    ]
    return len(reality.of(workload, place)) + len(earlier)


def _is_in_state(reality: Reality, name: str, state: str) -> bool:
    found = reality.instance(name)
    if found is None:
        return state not in ("Available", "Starting") and not state.startswith("Failed")
    match state:
        case "Available":
            return is_ready(found)
        case "Terminating" | "Stopping":
            return is_going(found)
        case "Failed (image unavailable)":
            return condition(found, "Ready")[1] == "ImageUnavailable"
        case "Failed (crashing)":
            return condition(found, "Ready")[1] == "InstanceCrashing"
        case "Failed (configuration error)":
            return condition(found, "Ready")[1] == "ConfigurationError"
        case "Pending (quota exceeded)":
            return reality.is_denied(name)
    return not is_ready(found) and not is_going(found)
