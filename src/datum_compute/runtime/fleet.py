"""The planes that a process works on at the moment. Entry point: `Fleet`."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from datum_compute.kube.errors import ApiError
from datum_compute.runtime.plane import Plane

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LATE_SECONDS = 30.0  # a plane that is not engaged by then is considered hanging


class NotEngaged(ApiError):
    """The plane is not engaged (any more).

    While `coming`, it is being engaged for the first time and nothing has failed yet, so there is no outage to report.
    The request runs again when the plane is engaged.
    """

    code, reason, retryable = 503, "PlaneNotEngaged", True

    def __init__(self, message: str, *, plane: str = "", role: str = "", coming: bool = False) -> None:
        super().__init__(message, plane=plane)
        self.role = role  # of the needed plane, where any of that role will do
        self.coming = coming


class Member(Protocol):
    """Works on the planes of a fleet: declares its caches in `prepare`, before a plane is engaged.

    `disengaged` is called for every plane that leaves, also if it was never engaged. A member that raises is called
    again after a pause, in the order `disengaged`, `prepare`, `engaged`.
    """

    def prepare(self, plane: Plane) -> None: ...

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...


class Fleet:
    """Each plane runs in its own task, so that one that does not answer never delays another."""

    def __init__(self) -> None:
        self._planes: dict[str, Plane] = {}
        self._coming: dict[str, Plane] = {}
        self._began: dict[str, float] = {}  # loop time at which each plane was first called
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._members: list[Member] = []
        self._tasks: asyncio.TaskGroup | None = None

    def join(self, member: Member) -> None:
        self._members.append(member)

    def plane(self, name: str) -> Plane:
        plane = self._planes.get(name)
        if plane is None:
            raise NotEngaged(f"plane {name} is not engaged", plane=name, coming=not self.tried(name))
        return plane

    def has(self, name: str) -> bool:
        return name in self._planes

    def knows(self, name: str) -> bool:
        """Whether a plane is engaged or about to be."""
        return name in self._planes or name in self._coming

    def tried(self, name: str) -> bool:
        """False only while a plane is being engaged for the first time, nothing has failed yet, and it is not late."""
        coming = self._coming.get(name)
        if coming is None or coming.failures.any:
            return True
        began = self._began.get(name)
        return began is not None and asyncio.get_running_loop().time() >= began + LATE_SECONDS

    def up(self, name: str) -> bool:
        """Whether a plane is engaged and all of its caches follow it."""
        return name in self._planes and self._planes[name].follows

    def planes(self) -> list[Plane]:
        return list(self._planes.values())

    def of_role(self, role: str) -> list[Plane]:
        return [plane for plane in self._planes.values() if role in plane.roles]

    def known(self, role: str = "") -> list[Plane]:
        """The planes, of one role or all, that are engaged or about to be."""
        return [plane for plane in (*self._planes.values(), *self._coming.values()) if not role or role in plane.roles]

    def only(self, role: str) -> Plane:
        """The plane of a role that has exactly one."""
        planes = self.of_role(role)
        if len(planes) != 1:
            coming = any(not self.tried(plane.name) for plane in self._coming.values() if role in plane.roles)
            raise NotEngaged(
                f"{len(planes)} planes of role {role} are engaged instead of one", role=role, coming=coming
            )
        return planes[0]

    def add(self, plane: Plane) -> None:
        """Starts to follow a plane; it is engaged as soon as its caches are filled."""
        if self.knows(plane.name):
            raise ValueError(f"plane {plane.name} is already here")
        self._coming[plane.name] = plane
        if self._tasks is not None:
            self._start(self._tasks, plane)

    def remove(self, name: str) -> None:
        """Stops following a plane; requests for it are dropped."""
        plane = self._planes.pop(name, None) or self._coming.pop(name, None)
        self._began.pop(name, None)
        if (run := self._runs.pop(name, None)) is not None:
            run.cancel()
        if plane is not None:
            for member in self._members:
                self._call(member, plane, "disengage")
            plane.leave()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for plane in list(self._coming.values()):
                self._start(tasks, plane)
            await asyncio.get_running_loop().create_future()  # planes may be added at any time

    def _start(self, tasks: asyncio.TaskGroup, plane: Plane) -> None:
        self._began[plane.name] = asyncio.get_running_loop().time()
        self._runs[plane.name] = tasks.create_task(self._follow(plane), name=f"plane/{plane.name}")

    async def _follow(self, plane: Plane) -> None:
        """A member with a defect is called again; others are not affected."""
        unprepared = [member for member in self._members if not self._call(member, plane, "prepare")]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_keep_running(plane), name=f"caches/{plane.name}")
            await plane.synced()
            self._planes[plane.name] = self._coming.pop(plane.name)
            failing = [
                member for member in self._members if member in unprepared or not self._call(member, plane, "engage")
            ]
            for pause in _pauses():
                if not failing:
                    break
                await asyncio.sleep(pause)
                failing = [member for member in failing if not self._engage_again(member, plane)]

    def _engage_again(self, member: Member, plane: Plane) -> bool:
        self._call(member, plane, "disengage")
        return self._call(member, plane, "prepare") and self._call(member, plane, "engage")

    def _call(self, member: Member, plane: Plane, step: str) -> bool:
        """Calls the member; false when it raised."""
        try:
            match step:
                case "prepare":
                    member.prepare(plane)
                case "engage":
                    member.engaged(plane)
                case "disengage":
                    member.disengaged(plane)
        except Exception as error:
            plane.failures.crashed("", step, error)
            return False
        return True


async def _keep_running(plane: Plane) -> None:
    for pause in _pauses():
        try:
            await plane.run()
        except Exception as error:
            plane.failures.crashed("", "run", error)
        await asyncio.sleep(pause)


def _pauses() -> Iterator[float]:
    """How long to wait after each defect in a row."""
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)
