"""What command tests share: a clock to turn, a terminal to read, a server to talk to, and objects to put there."""

import io
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import (
    CITY_CODE,
    DEPLOYMENT_NAME,
    PLACEMENT_NAME,
    TOPOLOGY_CITY,
    WORKLOAD_NAME,
    WORKLOAD_UID,
)
from datum_compute.api.names import claim_name
from datum_compute.api.networking import LOCATION_BINDING, NETWORK
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.main import main
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.talk.watching import Watching
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.meta import Json, as_dict, timestamp
from datum_compute.kube.tracing import Tracer
from datum_compute.kube.transport import Call
from tests.cli.server import ApiServer

IMAGE = "registry.example/shop:2.1"
NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until it is turned, or something sleeps."""

    def __init__(self) -> None:
        self.time = NOW
        self.slept: list[float] = []
        self._alarms: dict[object, tuple[datetime, Callable[[], None]]] = {}

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - NOW).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.turn(seconds)

    def turn(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        for key, (due, action) in list(self._alarms.items()):
            if due <= self.time and key in self._alarms:
                del self._alarms[key]
                action()

    @contextmanager
    def alarm(self, seconds: float, action: Callable[[], None]) -> Iterator[None]:
        key = object()
        self._alarms[key] = self.time + timedelta(seconds=min(seconds, 1e9)), action
        try:
            yield
        finally:
            self._alarms.pop(key, None)


class Stream(io.StringIO):
    def __init__(self, text: str = "", *, tty: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(text)
        self._tty = tty
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


class Script:
    """Changes on the server while a command waits: one step per wait, which also turns the clock."""

    def __init__(self, clock: FakeClock, steps: Sequence[Callable[[], object]]) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.trusted = True

    def __call__(self, transport: BlockingTransport, calls: Sequence[Call]) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        self._clock.turn(seconds)
        if not self._steps:
            raise AssertionError("the command still waits after everything that was to happen")
        step = self._steps.pop(0)
        step()
        return step is not nothing


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def nothing() -> None:
    """A step in which nothing happens."""


class Compute:
    """Runs the program in this process, by default against the server of the test."""

    def __init__(self, clock: FakeClock, environ: Mapping[str, str], directory: Path | None = None) -> None:
        self.clock = clock
        self.environ = dict(environ)
        self.watching: Watching | None = None  # a script, unless a test sets it
        self.directory = str(directory or "")  # where files are saved and read
        self.tracer: Tracer | None = None

    def __call__(
        self,
        *words: str,
        stdin: str = "",
        tty: bool = False,
        columns: int | None = None,
        encoding: str = "utf-8",
        program: str = "compute",
        steps: Sequence[Callable[[], object]] = (),
        trusted: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> Result:
        out, err = Stream(tty=tty, encoding=encoding), Stream(tty=tty, encoding=encoding)
        script = Script(self.clock, steps)
        script.trusted = trusted
        environment = Environment(
            program=program,
            environ=self.environ | dict(environ or {}),
            stdin=Stream(stdin, tty=tty),
            stdout=out,
            stderr=err,
            columns=columns,
            clock=self.clock,
            watching=self.watching or script,
            directory=self.directory,
            tracer=self.tracer,
            random_bytes=random.Random(1).randbytes,
        )
        code = main(words, environment)
        return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def _no_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps tests independent of what runs on this machine."""
    monkeypatch.setenv("DATUM_COMPUTE_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def bare_api(clock: FakeClock) -> Iterator[ApiServer]:
    """A project with nothing in it."""
    with ApiServer(clock) as api:
        yield api


@pytest.fixture
def api(bare_api: ApiServer) -> ApiServer:
    """A project that may use compute in three cities, with its default network."""
    admit(bare_api)
    return bare_api


def admit(api: ApiServer) -> None:
    entitle(api)
    for city in ("DFW", "AMS", "SIN"):
        offer(api, city)
    api.create(NETWORK, NETWORK.body("default", "default"))


@pytest.fixture
def compute(clock: FakeClock, bare_api: ApiServer, tmp_path: Path) -> Compute:
    path = kubeconfig(tmp_path / "kubeconfig", bare_api.project_url())
    return Compute(clock, {"KUBECONFIG": str(path)}, tmp_path)


def kubeconfig(path: Path, server: str, context: str = "project-demo") -> Path:
    content = {
        "current-context": context,
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "users": [{"name": context, "user": {"token": "s3cret"}}],
    }
    path.write_text(json.dumps(content))
    return path


def condition(type_: str, status: str, reason: str, message: str = "", since: datetime = NOW) -> Json:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(since),
    }


def entitle(api: ApiServer, phase: str = "Active", reason: str = "EntitlementActive", **status: object) -> None:
    api.create(SERVICE_ENTITLEMENT, SERVICE_ENTITLEMENT.body("compute") | {"spec": {"serviceRef": {"name": "compute"}}})
    if phase:
        ready = condition("Ready", str(phase == "Active"), reason, "as the platform says")
        api.set_status(SERVICE_ENTITLEMENT, "compute", {"phase": phase, "conditions": [ready], **status})


def offer(api: ApiServer, city: str) -> None:
    spec = {"displayName": city.title(), "topology": {TOPOLOGY_CITY: city, "topology.datum.net/region": "earth"}}
    api.create(LOCATION_BINDING, LOCATION_BINDING.body(city.lower()) | {"spec": spec})


def template(image: str = IMAGE, **container: Any) -> Json:
    return {
        "spec": {
            "runtime": {
                "resources": {"instanceType": "datumcloud/d1-standard-2"},
                "sandbox": {"containers": [{"name": "app", "image": image, **container}]},
            },
            "networkInterfaces": [{"network": {"name": "default"}}],
        }
    }


def placement(name: str, cities: Sequence[str], replicas: int) -> Json:
    return {"name": name, "cityCodes": list(cities), "scaleSettings": {"minReplicas": replicas}}


class World:
    """A workload as the controllers would leave it on the project plane, put there by hand."""

    def __init__(self, api: ApiServer, name: str = "shop") -> None:
        self.api = api
        self.name = name

    def workload(
        self, cities: Sequence[str] = ("AMS", "DFW"), replicas: int = 2, *, spec: Json | None = None, **metadata: object
    ) -> Workload:
        requested = {"template": template(), "placements": [placement("default", cities, replicas)]}
        body = WORKLOAD.body(self.name, "default", **metadata) | {"spec": requested | (spec or {})}
        return self.api.create(WORKLOAD, body)

    def read(self) -> Workload:
        return self.api.get(WORKLOAD, self.name)

    def observe(self, available: Json | None = None) -> None:
        """The workload controller has seen the newest spec."""
        generation = self.read().metadata.generation
        found = available or condition("Available", "True", "AvailablePlacementFound")
        answered = {"observedGeneration": generation, "conditions": [found]}
        self.api.set_status(WORKLOAD, self.name, self._sums() | answered)

    def _sums(self) -> Json:
        """Over all deployments, as the workload controller counts them."""
        uid = self.read().metadata.uid
        found = [
            as_dict(deployment.status_json)
            for deployment in self.api.all(WORKLOAD_DEPLOYMENT)
            if deployment.metadata.labels.get(WORKLOAD_UID) == uid
        ]
        sums = {counter: sum(status.get(counter, 0) for status in found) for counter in _COUNTERS}
        return sums | {"deployments": len(found)}

    def deployment(self, city: str, placement_name: str = "default", replicas: int = 2) -> str:
        workload = self.read()
        name = f"{self.name}-{placement_name}-{city.lower()}"
        spec = {
            "workloadRef": {"name": self.name, "uid": workload.metadata.uid},
            "placementName": placement_name,
            "cityCode": city,
            "template": as_dict(workload.template_json),
            "scaleSettings": {"minReplicas": replicas},
        }
        body = WORKLOAD_DEPLOYMENT.body(name, "default", labels={WORKLOAD_UID: workload.metadata.uid})
        self.api.create(WORKLOAD_DEPLOYMENT, body | {"spec": spec})
        return name

    def report(
        self,
        city: str,
        updated: int,
        ready: int,
        *,
        replicas: int | None = None,
        desired: int = 2,
        placement_name: str = "default",
        available: Json | None = None,
        generation: int | None = None,
    ) -> None:
        """Sets the status that the cell reports for a deployment."""
        name = f"{self.name}-{placement_name}-{city.lower()}"
        found = available or condition("Available", str(ready > 0), "StableInstanceFound" if ready else "Waiting")
        status = {
            "replicas": updated if replicas is None else replicas,
            "currentReplicas": updated,
            "updatedReplicas": updated,
            "desiredReplicas": desired,
            "readyReplicas": ready,
            "observedGeneration": generation or self.api.get(WORKLOAD_DEPLOYMENT, name).metadata.generation,
            "conditions": [found],
        }
        self.api.set_status(WORKLOAD_DEPLOYMENT, name, status)
        if reported := as_dict(self.read().status_json):
            self.api.set_status(WORKLOAD, self.name, reported | self._sums())

    def instance(
        self,
        city: str,
        ordinal: int,
        *conditions: Json,
        placement_name: str = "default",
        address: str = "",
        **labels: str,
    ) -> str:
        deployment = f"{self.name}-{placement_name}-{city.lower()}"
        name = f"{deployment}-{ordinal}"
        workload = self.read()
        marks = {
            WORKLOAD_UID: workload.metadata.uid,
            WORKLOAD_NAME: self.name,
            PLACEMENT_NAME: placement_name,
            CITY_CODE: city,
            DEPLOYMENT_NAME: deployment,
        }
        body = INSTANCE.body(name, "default", labels=marks | labels)
        made_from = {"controller": {"templateHash": template_hash(workload.template_json)}}
        self.api.create(INSTANCE, body | {"spec": as_dict(workload.template_json)["spec"] | made_from})
        found = list(conditions) or [condition("Ready", "True", "Available")]
        interfaces = [{"assignments": {"externalIP": address, "networkIP": "10.0.0.1"}}] if address else []
        self.api.set_status(INSTANCE, name, {"conditions": found, "networkInterfaces": interfaces})
        return name

    def claim(self, city: str, ordinal: int, labels: Mapping[str, str] = {}) -> str:
        """The quota that the site has claimed for an instance."""
        name = claim_name(f"{self.name}-default-{city.lower()}-{ordinal}")
        project = {"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": "demo"}
        spec = {"consumerRef": project, "requests": [{"resourceType": "compute.datumapis.com/instances", "amount": 1}]}
        body = RESOURCE_CLAIM.body(name, "default", labels={CITY_CODE: city, **labels})
        self.api.create(RESOURCE_CLAIM, body | {"spec": spec})
        return name

    def settled(self, cities: Sequence[str] = ("AMS", "DFW"), replicas: int = 2) -> None:
        """Everything runs."""
        self.workload(cities, replicas)
        self.observe()
        for city in cities:
            self.deployment(city, replicas=replicas)
            self.report(city, replicas, replicas, desired=replicas)
            for ordinal in range(replicas):
                self.instance(city, ordinal)


_COUNTERS = ("replicas", "currentReplicas", "updatedReplicas", "desiredReplicas", "readyReplicas")


@pytest.fixture
def world(api: ApiServer) -> World:
    return World(api)
