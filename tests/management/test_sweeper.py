"""Leftovers of projects on the hub: removed with a positive sign, and held without one."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import PROPAGATION_POLICY, RESOURCE_BINDING
from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.policy import city_policy
from datum_compute.federation.removal import AT_ONCE, GRACE_SECONDS
from datum_compute.federation.roles import HUB, PROJECT
from datum_compute.federation.withdrawals import Note, annotation, notes_of
from datum_compute.kube.errors import ApiError, Forbidden, NotFound, Unavailable
from datum_compute.kube.kinds import NAMESPACE, Kind
from datum_compute.kube.meta import Json
from datum_compute.management.metrics import ManagementMetrics
from datum_compute.management.sweeper import NAMESPACE_GRACES, HubSweeper
from datum_compute.runtime.fleet import Fleet
from datum_compute.runtime.testing.faults import calls, reads
from datum_compute.runtime.testing.simulation import Simulation
from tests.events import events
from tests.harness import ControllerHarness
from tests.karmada_objects import define
from tests.management.test_federator import spec

GROUP = "compute.datumapis.com"
RELEASE, UID, JOURNAL = f"{GROUP}/release", f"{GROUP}/upstream-uid", f"{GROUP}/withdrawn-uids"
SPEC = spec("DFW")
NAMESPACE_GRACE_SECONDS = NAMESPACE_GRACES * GRACE_SECONDS
LONG_ENOUGH = 3 * HubSweeper.sweep_seconds


class Sweep(ControllerHarness):
    """A project `demo` and a hub; what is on either is put there by the test."""

    def __init__(self, simulation: Simulation, *, enabled: bool = True) -> None:
        self.registry = CollectorRegistry()
        self._enabled = enabled
        super().__init__(simulation, {"demo": PROJECT, "hub": HUB}, self._build)
        self.project, self.hub = self.engine.client("demo"), self.engine.client("hub")

    def _build(self, fleet: Fleet) -> HubSweeper:
        return HubSweeper(fleet, metrics=ManagementMetrics(self.registry), enabled=self._enabled)

    async def start(self) -> None:
        for client in (self.project, self.hub):
            await client.create(NAMESPACE, NAMESPACE.body("default"))
        self.home = f"ns-{(await self.project.get(NAMESPACE, 'default')).metadata.uid}"
        await self.make_home(self.home, "default")
        await self.run()

    async def make_home(self, name: str, upstream: str, notes: Mapping[str, str | None] | None = None) -> None:
        annotations = {key: value for key, value in (notes or {}).items() if value}
        body = NAMESPACE.body(name, labels=hub_labels("demo", upstream), annotations=annotations)
        await self.hub.create(NAMESPACE, body)

    async def copy(self, name: str = "web", home: str = "", **annotations: str) -> None:
        """A hub deployment of a project deployment whose uid is `uid-of-NAME`."""
        marks = {UID: f"uid-of-{name}"} | annotations
        body = WORKLOAD_DEPLOYMENT.body(name, home or self.home, labels={TOPOLOGY_CITY: "DFW"}, annotations=marks)
        await self.hub.create(WORKLOAD_DEPLOYMENT, body | {"spec": SPEC})

    async def ask_for(self, name: str = "web") -> None:
        await self.project.create(WORKLOAD_DEPLOYMENT, WORKLOAD_DEPLOYMENT.body(name, "default") | {"spec": SPEC})

    async def gave_up(self, *names: str) -> None:
        """Writes entries into the project's journal."""
        text = "[" + ",".join(f'"uid-of-{name}"' for name in names) + "]"
        await self.project.merge_patch(NAMESPACE, "default", "", {"metadata": {"annotations": {JOURNAL: text}}})

    async def release(self, name: str = "web") -> None:
        patch = {"metadata": {"annotations": {RELEASE: "true"}}}
        await self.hub.merge_patch(WORKLOAD_DEPLOYMENT, name, self.home, patch)

    async def copies(self) -> list[str]:
        return [copy.name for copy in (await self.hub.list(WORKLOAD_DEPLOYMENT)).items]

    async def homes(self) -> list[str]:
        return sorted(
            namespace.name for namespace in (await self.hub.list(NAMESPACE)).items if namespace.name.startswith("ns-")
        )

    async def advance(self, seconds: float) -> None:
        await self.simulation.advance(seconds)
        assert self.controller.crashes == []

    def removed(self, kind: str) -> float | None:
        return self.registry.get_sample_value("compute_leftovers_removed_total", {"kind": kind})

    def held(self, what: str = "deployments", reason: str = "unproven") -> float | None:
        return self.registry.get_sample_value(f"compute_hub_{what}_held", {"reason": reason})


@pytest.fixture
def sweep(runner: asyncio.Runner, simulation: Simulation) -> Iterator[Sweep]:
    sweep = Sweep(simulation)
    runner.run(sweep.start())
    yield sweep
    runner.run(sweep.stop())


# Deployments


async def test_a_deployment_in_the_journal_is_withdrawn_with_its_policy_and_noted(sweep: Sweep) -> None:
    """As after the hub was restored to a moment before its deletion."""
    await sweep.gave_up("web")
    await sweep.hub.create(PROPAGATION_POLICY, city_policy(sweep.home, "DFW"))
    await sweep.copy()
    uid = (await sweep.hub.get(WORKLOAD_DEPLOYMENT, "web", sweep.home)).metadata.uid
    await sweep.advance(GRACE_SECONDS - 1)
    assert await sweep.copies() == ["web"]
    await sweep.advance(2)
    assert await sweep.copies() == []
    assert (await sweep.hub.list(PROPAGATION_POLICY)).items == []
    notes = notes_of((await sweep.hub.get(NAMESPACE, sweep.home)).metadata.annotations)
    assert notes == (Note("web", uid, "uid-of-web"),)
    assert (sweep.removed("hub_deployment"), sweep.removed("hub_namespace")) == (1, 0)


async def test_a_deployment_that_its_project_has_stays(sweep: Sweep) -> None:
    await sweep.gave_up("web")
    await sweep.ask_for()
    await sweep.copy()
    before = sweep.writes.total()
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]
    assert sweep.writes.total() == before


async def test_a_deployment_that_a_restored_project_lacks_is_held_and_reported_once(sweep: Sweep) -> None:
    await sweep.gave_up("another")
    await sweep.copy()
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]
    assert sweep.held() == 1
    (event,) = await events(sweep.hub)
    assert (event.reason, event.count, event.about["name"]) == ("Held", 1, "web")
    assert f"kubectl annotate workloaddeployment web -n {sweep.home} {RELEASE}=true" in event.message


async def test_a_held_deployment_is_withdrawn_when_an_operator_releases_it(sweep: Sweep) -> None:
    await sweep.copy()
    await sweep.advance(LONG_ENOUGH)
    await sweep.release()
    await sweep.advance(1)
    assert await sweep.copies() == []
    assert sweep.held() == 0


async def test_a_release_withdraws_nothing_that_the_project_has(sweep: Sweep) -> None:
    await sweep.ask_for()
    await sweep.copy(**{RELEASE: "true"})
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]


async def test_a_deployment_that_its_project_has_again_is_no_longer_held(sweep: Sweep) -> None:
    await sweep.copy()
    await sweep.advance(LONG_ENOUGH)
    await sweep.ask_for()
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]
    assert sweep.held() == 0


async def test_a_deployment_that_only_the_cache_lacks_stays(sweep: Sweep) -> None:
    await sweep.gave_up("web")
    sweep.faults["demo"].drop_event(calls(path="workloaddeployments"))
    await sweep.ask_for()
    await sweep.copy()
    await sweep.advance(GRACE_SECONDS + 5)
    assert await sweep.copies() == ["web"]


@pytest.mark.parametrize("error", [Unavailable("busy"), Forbidden("no"), NotFound("no such plane")], ids=str)
async def test_an_unreachable_project_proves_nothing(sweep: Sweep, error: ApiError) -> None:
    """Not even if it answers 404 to everything, as a deleted plane does."""
    await sweep.gave_up("web")
    await sweep.copy()
    sweep.faults["demo"].refuse(reads, error)
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]


async def test_what_belongs_to_a_project_that_is_not_engaged_stays_and_is_not_counted(sweep: Sweep) -> None:
    await sweep.copy()
    await sweep.advance(LONG_ENOUGH)
    assert sweep.held() == 1
    sweep.fleet.remove("demo")
    await sweep.release()
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]
    assert sweep.held() == 0


async def test_a_deployment_without_the_uid_of_its_project_is_held(sweep: Sweep) -> None:
    await sweep.gave_up("")
    await sweep.copy(**{UID: ""})
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["web"]


async def test_a_deployment_of_a_deleted_project_namespace_needs_the_same_sign(sweep: Sweep) -> None:
    await sweep.gave_up("web")
    await sweep.make_home("ns-gone", "team")
    for name in ("web", "api"):
        await sweep.copy(name, "ns-gone")
    await sweep.advance(2 * GRACE_SECONDS)
    assert await sweep.copies() == ["api"]


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_a_deployment_of_an_earlier_namespace_is_swept_despite_a_later_one_of_its_name(
    sweep: Sweep, is_given_up: bool
) -> None:
    """As when a project namespace was recreated, and the hub then restored to a moment before that."""
    await sweep.gave_up(*(["earlier"] if is_given_up else []))
    await sweep.ask_for()
    await sweep.copy()
    await sweep.make_home("ns-earlier", "default")
    await sweep.copy(home="ns-earlier", **{UID: "uid-of-earlier"})
    await sweep.advance(2 * GRACE_SECONDS)
    left = {copy.namespace for copy in (await sweep.hub.list(WORKLOAD_DEPLOYMENT)).items}
    assert left == ({sweep.home} if is_given_up else {sweep.home, "ns-earlier"})
    assert sweep.held() == (0 if is_given_up else 1)


async def test_a_brake_stops_a_mass_withdrawal(sweep: Sweep) -> None:
    names = [f"web-{number}" for number in range(AT_ONCE + 1)]
    await sweep.gave_up(*names)
    for name in names:
        await sweep.copy(name)
    await sweep.advance(LONG_ENOUGH)
    assert len(await sweep.copies()) == len(names)
    assert sweep.held(reason="braked") == len(names)
    await sweep.release(names[0])
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == []


async def test_with_removal_switched_off_only_released_objects_are_removed(
    runner: asyncio.Runner, simulation: Simulation
) -> None:
    sweep = Sweep(simulation, enabled=False)
    await sweep.start()
    await sweep.gave_up("web", "api")
    await sweep.make_home("ns-gone", "team", annotation([Note("web", "1")]))
    for name in ("web", "api"):
        await sweep.copy(name)
    await sweep.release("web")
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.copies() == ["api"]
    assert await sweep.homes() == sorted([sweep.home, "ns-gone"])
    assert (sweep.held(reason="switched-off"), sweep.held("namespaces", "switched-off")) == (1, 1)
    await sweep.stop()


# Namespaces

USED = annotation([Note("web", "1", "2")])


async def test_an_empty_hub_namespace_is_removed_after_its_project_namespace(sweep: Sweep) -> None:
    await sweep.make_home("ns-gone", "team", USED)
    await sweep.advance(NAMESPACE_GRACE_SECONDS - 5)
    assert "ns-gone" in await sweep.homes()
    await sweep.advance(10)
    assert await sweep.homes() == [sweep.home]


async def test_the_hub_namespace_of_a_recreated_project_namespace_is_removed(sweep: Sweep) -> None:
    await sweep.make_home("ns-earlier", "default", USED)
    await sweep.advance(LONG_ENOUGH)
    assert await sweep.homes() == [sweep.home]


async def test_a_hub_namespace_from_which_nothing_was_ever_withdrawn_is_held_until_it_is_released(
    sweep: Sweep,
) -> None:
    """As one from before notes existed, or on a hub restored to before its first deployment."""
    await sweep.make_home("ns-gone", "team")
    await sweep.advance(LONG_ENOUGH)
    assert "ns-gone" in await sweep.homes()
    assert sweep.held("namespaces") == 1
    (event,) = await events(sweep.hub)
    assert f"kubectl annotate namespace ns-gone {RELEASE}=true" in event.message
    await sweep.hub.merge_patch(NAMESPACE, "ns-gone", "", {"metadata": {"annotations": {RELEASE: "true"}}})
    await sweep.advance(5)
    assert await sweep.homes() == [sweep.home]
    assert sweep.held("namespaces") == 0


INSTANCE_SPEC: Json = {key: SPEC["template"]["spec"][key] for key in ("runtime", "networkInterfaces")}
CONTENTS: dict[Kind[Any], Json] = {
    WORKLOAD_DEPLOYMENT: WORKLOAD_DEPLOYMENT.body("web", "ns-gone") | {"spec": SPEC},
    INSTANCE: INSTANCE.body("web-0", "ns-gone") | {"spec": INSTANCE_SPEC},
    PROPAGATION_POLICY: city_policy("ns-gone", "DFW"),
    RESOURCE_BINDING: RESOURCE_BINDING.body("web", "ns-gone") | {"spec": {}},
}


@pytest.mark.parametrize("kind", CONTENTS, ids=lambda kind: kind.name)
async def test_a_hub_namespace_that_is_not_empty_stays(sweep: Sweep, kind: Kind[Any]) -> None:
    await define(sweep.hub, RESOURCE_BINDING)
    await sweep.settle()
    await sweep.make_home("ns-gone", "team", USED)
    await sweep.hub.create(kind, CONTENTS[kind])
    await sweep.advance(LONG_ENOUGH)
    assert "ns-gone" in await sweep.homes()
    await sweep.hub.delete(kind, CONTENTS[kind]["metadata"]["name"], "ns-gone")
    await sweep.advance(LONG_ENOUGH)
    assert "ns-gone" not in await sweep.homes()


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("ns-other", {}),
        ("ns-other", {"meta.datumapis.com/upstream-cluster-name": "cluster-demo"}),
        ("ns-other", hub_labels("another", "team")),
        ("other", hub_labels("demo", "team")),
    ],
)
async def test_a_namespace_that_is_not_ours_stays(sweep: Sweep, name: str, labels: dict[str, str]) -> None:
    marks = {**USED, RELEASE: "true"}
    await sweep.hub.create(NAMESPACE, NAMESPACE.body(name, labels=labels, annotations=marks))
    await sweep.advance(LONG_ENOUGH)
    assert not (await sweep.hub.get(NAMESPACE, name)).metadata.deleting


async def test_a_hub_namespace_stays_if_only_the_cache_lacks_its_project_namespace_even_when_released(
    sweep: Sweep,
) -> None:
    sweep.faults["demo"].drop_event(calls(path="/namespaces"))
    team = await sweep.project.create(NAMESPACE, NAMESPACE.body("team"))
    home = f"ns-{team.metadata.uid}"
    await sweep.make_home(home, "team", {**USED, RELEASE: "true"})
    await sweep.advance(GRACE_SECONDS)
    assert home in await sweep.homes()


async def test_a_hub_namespace_stays_if_only_the_cache_lacks_its_deployment_even_when_released(sweep: Sweep) -> None:
    await sweep.make_home("ns-gone", "team", USED)
    sweep.faults["hub"].drop_event(calls(path="/workloaddeployments"))
    await sweep.hub.create(WORKLOAD_DEPLOYMENT, CONTENTS[WORKLOAD_DEPLOYMENT])
    await sweep.settle()
    await sweep.hub.merge_patch(NAMESPACE, "ns-gone", "", {"metadata": {"annotations": {RELEASE: "true"}}})
    await sweep.advance(GRACE_SECONDS)
    assert "ns-gone" in await sweep.homes()


@pytest.mark.parametrize("error", [Unavailable("busy"), Forbidden("no"), NotFound("no such plane")], ids=str)
async def test_no_hub_namespace_is_removed_while_its_project_cannot_list_namespaces(
    sweep: Sweep, error: ApiError
) -> None:
    await sweep.make_home("ns-gone", "team", USED)
    sweep.faults["demo"].refuse(lambda call: reads(call) and call.path.endswith("/namespaces"), error)
    await sweep.advance(NAMESPACE_GRACE_SECONDS + 60)
    assert "ns-gone" in await sweep.homes()


async def test_a_brake_stops_the_removal_of_many_namespaces(sweep: Sweep) -> None:
    names = [f"ns-{number}" for number in range(AT_ONCE + 1)]
    for name in names:
        await sweep.make_home(name, "team", USED)
    await sweep.advance(LONG_ENOUGH)
    assert len(await sweep.homes()) == len(names) + 1
    assert sweep.held("namespaces", "braked") == len(names)
