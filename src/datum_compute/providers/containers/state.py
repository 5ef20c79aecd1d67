"""The state of an Instance, derived from that of its containers. Entry points: `report_of`, `next_step`, `View`."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from datum_compute.api import reasons
from datum_compute.providers import report
from datum_compute.providers.containers.image_rules import ImageState, Present, Pulling, Unavailable
from datum_compute.providers.containers.runs import CREATED, ENDED, PAUSED, RUNNING, Runs, Trouble
from datum_compute.providers.containers.shape import ContainerShape
from datum_compute.providers.engine.interface import Container
from datum_compute.providers.engine.words import PullProblem, Refusal, excerpt, program_in
from datum_compute.providers.report import Report

STARTING_SECONDS = 1.0  # what dies at once must not be taken for available, or a rollout would go on
LOOK_SECONDS = 1.0  # while the engine is about to change something by itself
KILLED = 137

MACHINE = Report("Unknown", reasons.CONFIGURATION_ERROR, "Virtual machines do not run here, only containers do")
AWAY = Report(
    "Unknown", "Unknown", "The site cannot tell the state of the instance: the container engine does not answer"
)
STARTING = Report("False", reasons.STARTING, "The instance is starting", reasons.STARTING)
PAUSED_BY_HAND = Report("Unknown", "Unknown", "The instance was paused on this machine")
NO_ROOM = Report(
    "Unknown",
    reasons.PROVISIONING,
    "The instance waits for room at the site: the disk of the container engine is full",
)


class View(Struct, frozen=True):
    """A container that an Instance needs, what the engine has of it, and what is remembered."""

    shape: ContainerShape
    found: Container | None = None
    runs: Runs = Runs()
    trouble: Trouble | None = None
    image: ImageState | None = None  # None until somebody looked, and while it does not matter
    limited: bool = True  # whether the engine limits its memory

    @property
    def status(self) -> str:
        return self.found.state.status if self.found is not None else ""

    @property
    def started(self) -> int:
        return self.found.state.started if self.found is not None else 0


# Reports


def report_of(views: Sequence[View], now: float) -> Report:
    """The worst report of all containers; of equal ones that of the first container. `now` is loop time."""
    subjects = ["The instance"] if len(views) == 1 else [f"Container {view.shape.container}" for view in views]
    reports = [_report(view, subject, now) for view, subject in zip(views, subjects, strict=True)]
    return min(reports, key=_rank)


def is_resuming(views: Sequence[View], now: float) -> bool:
    """Whether containers that ended while nobody watched are only being started again, and everything else runs.

    Then what was reported before goes on to hold for a moment: a rollout that waits for another instance would take
    this one for broken, and replace it.
    """
    pending = [view for view in views if not _report(view, "", now).running]
    return bool(pending) and all(
        view.runs.resumes and view.trouble is None and view.status in (RUNNING, *ENDED) for view in pending
    )


_RANKS = (
    ("Unknown", reasons.CONFIGURATION_ERROR),
    ("Unknown", reasons.IMAGE_UNAVAILABLE),
    ("Unknown", reasons.INSTANCE_CRASHING),
    ("False", reasons.INSTANCE_CRASHING),
    ("Unknown", "Unknown"),
    ("Unknown", reasons.PROVISIONING),
    ("False", reasons.STARTING),
    ("True", reasons.AVAILABLE),
)


def _rank(report_: Report) -> int:
    return _RANKS.index((report_.status, report_.reason))


def _report(view: View, subject: str, now: float) -> Report:
    if view.found is None and (state := _image_report(view)) is not None:
        return state
    if view.status == RUNNING:
        return report.RUNNING if now >= view.runs.since + STARTING_SECONDS else STARTING
    if view.status == PAUSED:
        return PAUSED_BY_HAND
    if view.trouble is not None:
        return _refused(view, view.trouble)
    if view.status in ENDED and view.runs.crashed:
        return _crashed(view, subject)
    return report.PROVISIONING


def _image_report(view: View) -> Report | None:
    image = view.shape.image
    match view.image:
        case Pulling(fraction=fraction):
            percent = f" ({fraction * 100:.0f} %)" if fraction is not None else ""
            return Report("Unknown", reasons.PROVISIONING, f"The image {image} is being pulled{percent}")
        case Unavailable(problem=PullProblem.DISK_FULL):
            return NO_ROOM
        case Unavailable(reason=reason):
            message = report.unavailable(image).message
            return Report("Unknown", reasons.IMAGE_UNAVAILABLE, f"{message}: {reason}" if reason else message)
    return None


def _refused(view: View, trouble: Trouble) -> Report:
    container, image = view.shape.container, view.shape.image
    program = program_in(trouble.text) or view.shape.program
    command = f"The command {excerpt(program)} of container {container}" if program else f"Container {container}"
    match trouble.refusal:
        case Refusal.DISK_FULL:
            return NO_ROOM
        case Refusal.PORT_TAKEN:
            return report.PROVISIONING
        case Refusal.NAME_TAKEN:
            return report.TAKEN
        case Refusal.PROGRAM_MISSING:
            missing = "is not in the image" if program else "has no command, and neither has its image"
            return _misconfigured(f"{command} {missing}")
        case Refusal.PROGRAM_UNUSABLE:
            return _misconfigured(f"{command} cannot be executed")
        case Refusal.OTHER_PROCESSOR:
            return _misconfigured(f"The image {image} is for another processor")
        case Refusal.OTHER:
            return _misconfigured(f"The container engine refused container {container}: {excerpt(trouble.text)}")


def _misconfigured(message: str) -> Report:
    return Report("Unknown", reasons.CONFIGURATION_ERROR, message)


def _crashed(view: View, subject: str) -> Report:
    assert view.found is not None
    state, count = view.found.state, view.runs.count
    memory = f"it used more than its {view.shape.memory} MiB of memory"
    if state.out_of_memory:
        once, again = f"{subject} was stopped because {memory}", memory
    elif state.exit_code == KILLED and view.limited:
        once = f"{subject} was stopped, most likely because {memory},"
        again = f"most likely {memory}"
    else:
        once, again = f"{subject} failed", f"exit code {state.exit_code}"
    if count > 1:
        return Report("Unknown", reasons.INSTANCE_CRASHING, f"{subject} keeps failing: {again}, {count} times in a row")
    code = f" (exit code {state.exit_code})" if once.endswith("failed") else ""
    message = f"{once} and will be started again{code}"
    return Report("False", reasons.INSTANCE_CRASHING, message, reasons.INSTANCE_CRASHING)


# Steps


class Create(Struct, frozen=True, tag=True):
    index: int


class Start(Struct, frozen=True, tag=True):
    index: int


class Stop(Struct, frozen=True, tag=True):
    indexes: tuple[int, ...]


class Remove(Struct, frozen=True, tag=True):
    """In this order: the first container goes last, because the others use its network."""

    indexes: tuple[int, ...]


class Wait(Struct, frozen=True, tag=True):
    """`seconds` is None if only an event can change anything."""

    seconds: float | None


Step = Create | Start | Stop | Remove | Wait


def next_step(views: Sequence[View], now: float) -> Step:
    """The next thing to do for an Instance, one at a time, so that a process that ends in between loses nothing.

    The first container has the network of all. The others run only beside it, in the run that they joined.
    """
    first = _step(views, 0, now)
    others = range(1, len(views))
    if views[0].found is None or isinstance(first, Remove):
        if leftovers := tuple(index for index in reversed(others) if views[index].found is not None):
            return Remove(leftovers)
        return first
    if views[0].status != RUNNING:
        if views[0].status in ENDED and (running := _running(views, others)):
            return Stop(running)
        return first
    if outdated := tuple(index for index in _running(views, others) if views[index].started < views[0].started):
        return Stop(outdated)
    steps = [first, *(_step(views, index, now) for index in others)]
    waits = [step.seconds for step in steps if isinstance(step, Wait) and step.seconds is not None]
    return next((step for step in steps if not isinstance(step, Wait)), Wait(min(waits, default=None)))


def _running(views: Sequence[View], indexes: Iterable[int]) -> tuple[int, ...]:
    return tuple(index for index in indexes if views[index].status == RUNNING)


def _step(views: Sequence[View], index: int, now: float) -> Step:
    """The next thing to do for one container, whatever the others do."""
    view = views[index]
    troubled_until = view.trouble.again_at if view.trouble is not None else 0.0
    if view.found is None:
        match view.image:
            case Unavailable(again_at=again_at):
                return Wait(max(0.0, again_at - now) if again_at is not None else None)
            case Present() if now >= troubled_until:
                return Create(index)
            case Present():
                return Wait(troubled_until - now)
        return Wait(None)
    if view.status == RUNNING:
        left = view.runs.since + STARTING_SECONDS - now
        return Wait(left if left > 0 else None)
    if view.status == PAUSED:
        return Wait(None)
    if view.status in CREATED or view.status in ENDED:
        due = max(troubled_until, view.runs.again_at if view.status in ENDED else 0.0)
        if now < due:
            return Wait(due - now)
        return Remove((index,)) if view.trouble is not None and view.trouble.anew else Start(index)
    if view.status == "dead":
        return Remove((index,))
    return Wait(LOOK_SECONDS)
