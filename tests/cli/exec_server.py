"""A server on which commands can be run, in instances that run nowhere. Entry point: `ExecServer`."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import SOURCE_CLUSTER, UPSTREAM_UID
from datum_compute.api.names import hub_namespace
from datum_compute.api.services import SERVICE_ENTITLEMENT, SERVICE_OBJECT
from datum_compute.embedded.https.certificates import Credentials
from datum_compute.embedded.https.extensions import Extension
from datum_compute.embedded.https.server import HttpsServer
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.kube.access.kubeconfig import write_kubeconfig
from datum_compute.kube.kinds import EVENT, NAMESPACE
from datum_compute.local.engine import compute_engine
from datum_compute.runtime import SystemClock
from datum_compute.telemetry.exec.door import Caller, Door
from datum_compute.telemetry.exec.places import Places
from datum_compute.telemetry.exec.request import GROUP, VERSION
from tests.sessions import FakeRunner
from tests.telemetry.exec_world import USER, condition, running, spec

T = TypeVar("T")

ACTIVE = {"phase": "Active", "conditions": [condition("Ready", "True", "EntitlementActive")]}


class ExecServer:
    """A project with the instances `web-0`, `two-0` with two containers, `vm-0`, and `off-0`, which does not run."""

    def __init__(self, folder: Path, *, runner: FakeRunner | None) -> None:
        self.runner = runner
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="exec-server")
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        self.do(self._start(Credentials.ensure(folder / "credentials")))
        write_kubeconfig(self.kubeconfig, {"project-demo": self.server.endpoint("demo")}, current="project-demo")

    async def _start(self, credentials: Credentials) -> None:
        self.engine = compute_engine()
        self.engine.serve("demo", PROJECT)
        self.engine.serve("hub", HUB)
        self._work = asyncio.create_task(self.engine.run())
        project, hub = self.engine.client("demo"), self.engine.client("hub")
        entitlement = await project.create(
            SERVICE_ENTITLEMENT,
            SERVICE_ENTITLEMENT.body("compute") | {"spec": {"serviceRef": {"name": SERVICE_OBJECT}}},
        )
        await project.replace_status(SERVICE_ENTITLEMENT, entitlement, ACTIVE)
        home = await project.create(NAMESPACE, NAMESPACE.body("default"))
        namespace = hub_namespace(home.metadata.uid)
        await hub.create(NAMESPACE, NAMESPACE.body(namespace, labels=hub_labels("demo", "default")))
        containers = {"web-0": ("app",), "two-0": ("app", "proxy"), "vm-0": (), "off-0": ("app",)}
        for name, names in containers.items():
            await project.create(INSTANCE, INSTANCE.body(name, "default") | spec(names))
            labels = {SOURCE_CLUSTER: "cell-dfw"} | hub_labels("demo", "default")
            metadata = {"labels": labels, "annotations": {UPSTREAM_UID: f"uid-of-{name}"}}
            copy = await hub.create(INSTANCE, INSTANCE.body(name, namespace, **metadata) | spec(names))
            if name != "off-0":
                await hub.replace_status(INSTANCE, copy, running())
        self.namespace = namespace
        door = Door(_access, Places(self.engine.client, lambda: hub, SystemClock()), self.runner)
        extension = Extension(GROUP, VERSION, PROJECT, door, websockets=True)
        self.server = HttpsServer(self.engine, credentials, extensions=[extension])
        await self.server.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    def events(self) -> list[str]:
        return [event.message for event in self.do(self.engine.client("demo").list(EVENT)).items]

    def stop(self, name: str) -> None:
        """The instance is gone from its site."""
        self.do(self.engine.client("hub").delete(INSTANCE, name, self.namespace))

    def stop_serving(self) -> None:
        self.do(self.server.stop())

    def close(self) -> None:
        self.do(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        await self.server.stop()
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self.engine.close()


async def _access(plane: str, scope: Any, namespace: str, instance: str) -> Caller:
    return Caller(plane, USER)
