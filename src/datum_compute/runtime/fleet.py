"""The planes a process works on; they come and go. Entry point: `Fleet`."""

import asyncio
from typing import Protocol

from datum_compute.kube.errors import ApiError
from datum_compute.runtime.plane import Plane


class NotEngaged(ApiError):
    """The plane is not (or no longer) one this process works on."""

    code, reason, retryable = 503, "PlaneNotEngaged", True

    def __init__(self, message: str, *, plane: str = "", role: str = "") -> None:
        super().__init__(message, plane=plane)
        self.role = role  # of the plane that is needed, where any of that role will do


class Member(Protocol):
    """Who wants to know about planes: declares its caches before a plane is engaged, works on it afterwards.

    `disengaged` comes for every plane that leaves, for one that was never engaged as well.
    """

    def prepare(self, plane: Plane) -> None: ...

    def engaged(self, plane: Plane) -> None: ...

    def disengaged(self, plane: Plane) -> None: ...


class Fleet:
    """Each plane runs in a task of its own, so that one that does not answer never holds up another."""

    def __init__(self) -> None:
        self._planes: dict[str, Plane] = {}
        self._coming: dict[str, Plane] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._members: list[Member] = []
        self._tasks: asyncio.TaskGroup | None = None

    def join(self, member: Member) -> None:
        self._members.append(member)

    def plane(self, name: str) -> Plane:
        plane = self._planes.get(name)
        if plane is None:
            raise NotEngaged(f"plane {name} is not engaged", plane=name)
        return plane

    def has(self, name: str) -> bool:
        return name in self._planes

    def knows(self, name: str) -> bool:
        """Whether a plane is engaged or about to be."""
        return name in self._planes or name in self._coming

    def planes(self) -> list[Plane]:
        return list(self._planes.values())

    def of_role(self, role: str) -> list[Plane]:
        return [plane for plane in self._planes.values() if role in plane.roles]

    def known(self, role: str) -> list[Plane]:
        """The planes of a role that are engaged or about to be."""
        return [plane for plane in (*self._planes.values(), *self._coming.values()) if role in plane.roles]

    def only(self, role: str) -> Plane:
        """The plane of a role that has exactly one."""
        found = self.of_role(role)
        if len(found) != 1:
            raise NotEngaged(f"{len(found)} planes of role {role} are engaged, one is needed", role=role)
        return found[0]

    def add(self, plane: Plane) -> None:
        """Starts to follow a plane; it is engaged as soon as its caches are filled."""
        if self.knows(plane.name):
            raise ValueError(f"plane {plane.name} is already here")
        self._coming[plane.name] = plane
        if self._tasks is not None:
            self._start(self._tasks, plane)

    def remove(self, name: str) -> None:
        """Stops following a plane; what waits for it is dropped."""
        plane = self._planes.pop(name, None) or self._coming.pop(name, None)
        if (run := self._runs.pop(name, None)) is not None:
            run.cancel()
        if plane is not None:
            for member in self._members:
                member.disengaged(plane)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for plane in list(self._coming.values()):
                self._start(tasks, plane)
            await asyncio.get_running_loop().create_future()  # planes may be added at any time

    def _start(self, tasks: asyncio.TaskGroup, plane: Plane) -> None:
        self._runs[plane.name] = tasks.create_task(self._follow(plane), name=f"plane/{plane.name}")

    async def _follow(self, plane: Plane) -> None:
        for member in self._members:
            member.prepare(plane)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(plane.run(), name=f"caches/{plane.name}")
            await plane.synced()
            self._planes[plane.name] = self._coming.pop(plane.name)
            for member in self._members:
                member.engaged(plane)
