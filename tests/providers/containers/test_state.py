"""What an Instance is reported to be, and what is done next, by what the engine has of it."""

from typing import Any

import pytest

from datum_compute.kube.meta import Json
from datum_compute.providers import report
from datum_compute.providers.containers.image_rules import Present, Pulling, Unavailable
from datum_compute.providers.containers.runs import Runs, Trouble
from datum_compute.providers.containers.shape import ContainerShape
from datum_compute.providers.containers.state import (
    AWAY,
    MACHINE,
    Create,
    Remove,
    Start,
    Step,
    Stop,
    View,
    Wait,
    next_step,
    report_of,
)
from datum_compute.providers.engine.interface import Container, ContainerState
from datum_compute.providers.engine.words import PullProblem, Refusal

NOW = 100.0
PiP = "ProgrammingInProgress"


def shape(name: str = "web") -> ContainerShape:
    body: Json = {}
    return ContainerShape(name, f"datum-{name}", "hello:1", "/bin/serve", 2048, body)


def found(status: str, code: int = 0, started: int = 1, *, oom: bool = False) -> Container:
    state = ContainerState(status, code, oom, "", started, 0)
    return Container("id", "datum-web", {}, "hello:1", state, {}, {})


def running(name: str = "web", since: float = 0.0, started: int = 1) -> View:
    return View(shape(name), found("running", started=started), Runs(run=started, since=since))


def absent(name: str = "web", **also: Any) -> View:
    return View(shape(name), **({"image": Present()} | also))


def crashed(code: int, count: int, *, oom: bool = False, limited: bool = True, again_at: float = NOW) -> View:
    runs = Runs(run=1, ended=1, count=count, crashed=True, again_at=again_at)
    return View(shape(), found("exited", code, oom=oom), runs, limited=limited)


def refused(refusal: Refusal, text: str = "", status: str = "created", *, again_at: float = NOW + 30) -> View:
    there = found(status) if status else None
    return View(shape(), there, trouble=Trouble(refusal, text, again_at=again_at, anew=True), image=Present())


PROVISIONING = ("Unknown", "Provisioning", PiP, "The instance is being provisioned")
FULL = (
    "Unknown", "Provisioning", PiP, "The instance waits for room at the site: the disk of the container engine is full"
)  # fmt: skip
TAKEN = ("Unknown", "Provisioning", PiP, "The site still has something else of the instance's name")

ROWS = {
    "another has the name": (refused(Refusal.NAME_TAKEN, status=""), TAKEN),
    "pull without size": (
        absent(image=Pulling()),
        ("Unknown", "Provisioning", PiP, "The image hello:1 is being pulled"),
    ),
    "pull": (
        absent(image=Pulling(0.4)),
        ("Unknown", "Provisioning", PiP, "The image hello:1 is being pulled (40 %)"),
    ),
    "no such image": (
        absent(image=Unavailable(PullProblem.MISSING, "", 0)),
        ("Unknown", "ImageUnavailable", PiP, "The image hello:1 cannot be pulled: the registry does not have it"),
    ),
    "no credentials": (
        absent(image=Unavailable(PullProblem.DENIED, "", 0)),
        ("Unknown", "ImageUnavailable", PiP, "The image hello:1 cannot be pulled: the registry wants credentials"),
    ),
    "silent registry": (
        absent(image=Unavailable(PullProblem.NO_ANSWER, "", 0)),
        ("Unknown", "ImageUnavailable", PiP, "The image hello:1 cannot be pulled: the registry does not answer"),
    ),
    "bad name": (
        absent(image=Unavailable(PullProblem.NAME_INVALID, "", 0)),
        ("Unknown", "ImageUnavailable", PiP, "The image hello:1 cannot be pulled: the name is not valid"),
    ),
    "other pull problem": (
        absent(image=Unavailable(PullProblem.OTHER, "it \n is odd.", 0)),
        ("Unknown", "ImageUnavailable", PiP, "The image hello:1 cannot be pulled: it is odd"),
    ),
    "full in pull": (absent(image=Unavailable(PullProblem.DISK_FULL, "", 0)), FULL),
    "full in create": (refused(Refusal.DISK_FULL, status=""), FULL),
    "full in start": (refused(Refusal.DISK_FULL), FULL),
    "nothing yet": (absent(image=None), PROVISIONING),
    "image there": (absent(), PROVISIONING),
    "created": (View(shape(), found("created", started=0)), PROVISIONING),
    "being removed": (View(shape(), found("removing")), PROVISIONING),
    "ended, nobody watched": (View(shape(), found("exited"), Runs(run=1, ended=1)), PROVISIONING),
    "program missing": (
        refused(Refusal.PROGRAM_MISSING, 'exec: "serve": executable file not found'),
        ("Unknown", "ConfigurationError", PiP, "The command serve of container web is not in the image"),
    ),
    "program missing, not named": (
        refused(Refusal.PROGRAM_MISSING),
        ("Unknown", "ConfigurationError", PiP, "The command /bin/serve of container web is not in the image"),
    ),
    "not executable": (
        refused(Refusal.PROGRAM_UNUSABLE),
        ("Unknown", "ConfigurationError", PiP, "The command /bin/serve of container web cannot be executed"),
    ),
    "other processor": (
        refused(Refusal.OTHER_PROCESSOR),
        ("Unknown", "ConfigurationError", PiP, "The image hello:1 is for another processor"),
    ),
    "port taken": (refused(Refusal.PORT_TAKEN), PROVISIONING),
    "refused": (
        refused(Refusal.OTHER, "odd " * 100, status=""),
        (
            "Unknown",
            "ConfigurationError",
            PiP,
            f"The container engine refused container web: {('odd ' * 100)[:199].rstrip()}…",
        ),
    ),
    "runs for a moment": (running(since=NOW - 0.9), ("False", "Starting", "Starting", "The instance is starting")),
    "runs": (running(since=NOW - 1), ("True", "Available", "Programmed", "The instance is available")),
    "paused": (
        View(shape(), found("paused"), Runs(run=1)),
        ("Unknown", "Unknown", PiP, "The instance was paused on this machine"),
    ),
    "ended": (
        crashed(3, 1),
        (
            "False",
            "InstanceCrashing",
            "InstanceCrashing",
            "The instance failed and will be started again (exit code 3)",
        ),
    ),
    "ended well": (
        crashed(0, 1),
        (
            "False",
            "InstanceCrashing",
            "InstanceCrashing",
            "The instance failed and will be started again (exit code 0)",
        ),
    ),
    "ended again": (
        crashed(3, 4),
        ("Unknown", "InstanceCrashing", PiP, "The instance keeps failing: exit code 3, 4 times in a row"),
    ),
    "out of memory": (
        crashed(137, 1, oom=True),
        (
            "False",
            "InstanceCrashing",
            "InstanceCrashing",
            "The instance was stopped because it used more than its 2048 MiB of memory and will be started again",
        ),
    ),
    "killed": (
        crashed(137, 1),
        (
            "False",
            "InstanceCrashing",
            "InstanceCrashing",
            "The instance was stopped, most likely because it used more than its 2048 MiB of memory, "
            "and will be started again",
        ),
    ),
    "killed, without a limit": (
        crashed(137, 1, limited=False),
        (
            "False",
            "InstanceCrashing",
            "InstanceCrashing",
            "The instance failed and will be started again (exit code 137)",
        ),
    ),
    "out of memory again": (
        crashed(137, 2, oom=True),
        (
            "Unknown",
            "InstanceCrashing",
            PiP,
            "The instance keeps failing: it used more than its 2048 MiB of memory, 2 times in a row",
        ),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_report_for_one_container(name: str) -> None:
    view, expected = ROWS[name]
    made = report_of([view], NOW)
    assert (made.status, made.reason, made.programmed, made.message) == expected


def test_reports_that_need_no_container() -> None:
    assert (MACHINE.status, MACHINE.reason, MACHINE.programmed) == ("Unknown", "ConfigurationError", PiP)
    assert (AWAY.status, AWAY.reason, AWAY.programmed) == ("Unknown", "Unknown", PiP)
    assert (report.STOPPING.status, report.STOPPING.reason) == ("False", "Stopping")


def test_the_worst_container_speaks_for_the_instance() -> None:
    bad = View(shape("helper"), found("exited", 3), Runs(run=1, ended=1, count=2, crashed=True))
    assert report_of([running(), bad], NOW).message == "Container helper keeps failing: exit code 3, 2 times in a row"
    assert report_of([running(), running("helper", since=NOW)], NOW).reason == "Starting"
    assert report_of([running(), running("helper")], NOW) == report.RUNNING
    both = [absent("web", image=Pulling(0.1)), absent("helper", image=Pulling(0.9))]
    assert report_of(both, NOW).message == "The image hello:1 is being pulled (10 %)"


STEPS: dict[str, tuple[list[View], Step]] = {
    "nobody looked for the image": ([absent(image=None)], Wait(None)),
    "image there": ([absent()], Create(0)),
    "being pulled": ([absent(image=Pulling())], Wait(None)),
    "pull failed": ([absent(image=Unavailable(PullProblem.MISSING, "", NOW + 10))], Wait(10)),
    "being pulled again": ([absent(image=Unavailable(PullProblem.MISSING, ""))], Wait(None)),
    "create refused": ([refused(Refusal.OTHER, status="")], Wait(30)),
    "create refused, time is over": ([refused(Refusal.OTHER, status="", again_at=NOW)], Create(0)),
    "created": ([View(shape(), found("created", started=0))], Start(0)),
    "start refused": ([refused(Refusal.OTHER)], Wait(30)),
    "start refused, time is over": ([refused(Refusal.OTHER, again_at=NOW)], Remove((0,))),
    "made anew": (
        [View(shape(), found("created", started=0), trouble=Trouble(Refusal.OTHER, again_at=NOW))],
        Start(0),
    ),
    "runs": ([running()], Wait(None)),
    "runs for a moment": ([running(since=NOW - 0.25)], Wait(0.75)),
    "paused": ([View(shape(), found("paused"))], Wait(None)),
    "crashed": ([crashed(1, 1)], Start(0)),
    "crashed again": ([crashed(1, 3, again_at=NOW + 2)], Wait(2)),
    "ended, nobody watched": ([View(shape(), found("exited"), Runs(run=1, ended=1, again_at=NOW))], Start(0)),
    "being removed": ([View(shape(), found("removing"))], Wait(1)),
    "dead": ([View(shape(), found("dead"))], Remove((0,))),
    # With others beside the first
    "first": ([absent(), absent("b")], Create(0)),
    "first is started before the second is created": (
        [View(shape(), found("created", started=0)), absent("b")],
        Start(0),
    ),
    "second": ([running(), absent("b"), absent("c")], Create(1)),
    "second waits, third does not": ([running(), absent("b", image=Pulling()), absent("c")], Create(2)),
    "second created": ([running(), View(shape("b"), found("created", started=0))], Start(1)),
    "all": ([running(), running("b")], Wait(None)),
    "the shortest wait counts": ([running(), running("b", since=NOW - 0.25), running("c", since=NOW)], Wait(0.75)),
    "first is gone": ([absent(), running("b"), running("c")], Remove((2, 1))),
    "first ended": ([crashed(1, 1), running("b"), running("c")], Stop((1, 2))),
    "first ended and all stopped": ([crashed(1, 1), View(shape("b"), found("exited"))], Start(0)),
    "first was started again beside the others": (
        [running(started=9), running("b", started=5), running("c", started=9)],
        Stop((1,)),
    ),
    "second ended alone": (
        [running(), View(shape("b"), found("exited"), Runs(run=1, ended=1, again_at=NOW))],
        Start(1),
    ),
    "first must be made anew": ([refused(Refusal.PORT_TAKEN, again_at=NOW), running("b")], Remove((1,))),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_next_step(name: str) -> None:
    views, expected = STEPS[name]
    assert next_step(views, NOW) == expected
