"""What a process knows about the containers of an Instance. Entry point: `Memory`."""

import msgspec

from datum_compute.federation.lines import Origin
from datum_compute.providers.containers.runs import RUNNING, Runs, Trouble, forgotten, observed, troubled
from datum_compute.providers.containers.shape import Shape
from datum_compute.providers.engine.interface import Container
from datum_compute.providers.engine.words import Refusal
from datum_compute.providers.report import Report


class Memory:
    """By name of the container in the spec. After a restart of this process it is found out again, or begins anew."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.shape: Shape | None = None
        self.found: dict[str, Container] = {}
        self.runs: dict[str, Runs] = {}
        self.troubles: dict[str, Trouble] = {}
        self.report: Report | None = None
        self.warned: set[str] = set()  # images of which an old version is used

    @property
    def containers(self) -> list[str]:
        return [container.container for container in self.shape.containers] if self.shape is not None else []

    @property
    def origins(self) -> list[Origin]:
        return [self.origin(container) for container in self.containers]

    def origin(self, container: str) -> Origin:
        assert self.shape is not None
        return Origin(
            project=self.shape.identity.project,
            namespace=self.shape.identity.namespace,
            workload=self.shape.workload,
            placement=self.shape.placement,
            city=self.shape.city,
            instance=self.shape.instance,
            generation=self.uid,
            container=container,
        )

    def run_of(self, container: str) -> Runs:
        return self.runs.get(container, Runs())

    def see(self, container: str, found: Container, now: float, wall: int) -> bool:
        """Takes in what the engine has; returns whether a run was seen for the first time, even if it has ended."""
        before = self.run_of(container)
        self.found[container] = found
        self.runs[container] = after = observed(before, found.state, now, wall)
        if found.state.status == RUNNING:
            self.troubles.pop(container, None)
        return before.run != after.run

    def miss(self, container: str) -> Container | None:
        """Takes in that the engine has nothing; returns what it had before."""
        return self.found.pop(container, None)

    def mark(self, container: str, *, starting: bool = False, stopping: bool = False) -> None:
        """Notes what is about to be asked of the engine."""
        self.runs[container] = msgspec.structs.replace(self.run_of(container), starting=starting, stopping=stopping)

    def made_anew(self, container: str) -> None:
        if (trouble := self.troubles.get(container)) is not None:
            self.troubles[container] = msgspec.structs.replace(trouble, anew=False)

    def refuse(self, container: str, refusal: Refusal, text: str, now: float, *, anew: bool) -> None:
        self.troubles[container] = troubled(self.troubles.get(container), refusal, text, now, anew=anew)

    def outage(self) -> None:
        """The engine was away: what it ended meanwhile has not crashed."""
        self.runs = {container: forgotten(runs) for container, runs in self.runs.items()}

    def published(self) -> dict[str, int]:
        """Ports on this machine, such as 37991 for `8080/tcp`, while the container that has them runs."""
        running = (found for found in self.found.values() if found.state.status == RUNNING)
        return {port: number for found in running for port, number in found.ports.items()}
