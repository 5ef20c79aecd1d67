"""Each fault that can hold up a workload is named: the hop, the reason, who can act, and the words.

As an operator with a kubeconfig of the hub and the cells, in a federation on this machine, and as a project's user.
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.karmada import CLUSTER, PROPAGATION_POLICY
from datum_compute.api.labels import INSTANCE_NAMESPACE, ROLLOUT_PAUSED, SOURCE_CLUSTER, TOPOLOGY_CITY
from datum_compute.api.networking import NETWORK
from datum_compute.api.permissions import PERMISSIONS, On, Who
from datum_compute.api.quota import INSTANCES, RESOURCE_CLAIM
from datum_compute.api.services import SERVICE_ENTITLEMENT
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.plane.server import PlaneServer
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import NAMESPACE
from datum_compute.kube.meta import Json
from datum_compute.kube.transport import Call
from datum_compute.runtime.testing.faults import writes
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.command import Command
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.federation import Federation, Project, template
from tests.scenarios.life import BEHAVIOUR

OPERATOR, LOCAL, USER = FORMS = ("operator", "local", "user")
OTHER_IMAGE = "registry.example/hello:2"
OTHER_PROVIDER = "compute.datumapis.com/other-provider"
MANAGEMENT = ("workload", "workload-deployment-federator", "instance-projector")


class Case:
    """A federation in which something is wrong, and the program in its three forms."""

    def __init__(self, engine: EmbeddedFederation, simulation: Simulation, folder: Path) -> None:
        self.engine = engine
        self.simulation = simulation
        self.federation = Federation(engine)
        self.project: Project = self.federation.project()
        self.denies: Callable[[Call], bool] = lambda call: False
        self._folder = folder

    def ask(self, form: str, words: str = "web") -> Json:
        result = self.command(form).look(self.line(form, f"why {words} -o json"))
        assert result.code == 0, result.err
        answer: Json = json.loads(result.out)
        return answer

    def command(self, form: str) -> Command:
        folder = self._folder / form
        folder.mkdir(exist_ok=True)
        others = {} if form == USER else {"hub": self._server("hub")} | {c: self._server(c) for c in CITIES.values()}
        return Command(
            self.simulation,
            self._server("demo"),
            folder,
            others=others,
            apart=form == OPERATOR,
            denies=lambda call: self.denies(call),
        )

    def line(self, form: str, line: str) -> str:
        return f"{line} --federation-kubeconfig={self._folder / form / 'federation'}" if form == OPERATOR else line

    def _server(self, plane: str) -> PlaneServer:
        server = self.engine.engine.plane(plane)
        assert server is not None
        return server

    def check(
        self, hop: str, reason: str, who: str, words: str, forms: tuple[str, ...] = FORMS, name: str = "web"
    ) -> None:
        for form in forms:
            answer = self.ask(form, name)
            assert (form, answer["hop"], answer["reason"], answer["who"]) == (form, hop, reason, who), answer
            assert words in answer["message"], answer["message"]

    def check_way(self, who: str = "wait", name: str = "web") -> None:
        """A user of the project learns where knowledge ends, and whom to ask."""
        answer = self.ask(USER, name)
        assert (answer["hop"], answer["reason"], answer["who"]) == ("way", "OnItsWay", who)
        assert "--federation-kubeconfig=FILE" in answer["unread"][0]["ask"]

    async def advance(self, seconds: float) -> None:
        await self.simulation.advance(seconds)


@pytest.fixture
def case(embedded: EmbeddedFederation, simulation: Simulation, tmp_path: Path) -> Case:
    return Case(embedded, simulation, tmp_path)


async def deployed(case: Case, cities: tuple[str, ...] = ("DFW",), replicas: int = 2) -> None:
    await case.project.deploy("web", cities, replicas)
    await case.project.until_ready("web", len(cities) * replicas)
    await case.advance(70)  # long enough for any normal delay


async def test_nothing_is_wrong(case: Case) -> None:
    await deployed(case)
    for form in FORMS:
        answer = case.ask(form)
        assert answer["sentence"] == "Nothing blocks web: 2 of 2 instances in 1 city run the newest version."
    command = case.command(USER)
    command.look("why web")
    assert len(command.calls) == 3


# The request


async def test_a_city_that_is_not_offered(case: Case) -> None:
    await case.project.deploy("web", ["DFW", "XYZ"], 1)
    await case.advance(70)
    case.check("offer", "NoMatchingLocation", "platform", "not offered to this project, which has DFW, ORD")


@pytest.mark.parametrize(
    ("phase", "words"), [("PendingApproval", "access waits for approval"), ("Rejected", "access was denied")]
)
async def test_access_that_is_not_granted(case: Case, phase: str, words: str) -> None:
    case.engine.stop_controllers("entitlement", *MANAGEMENT)
    client = case.project.client
    seen = await client.get(SERVICE_ENTITLEMENT, "compute")
    await client.replace_status(SERVICE_ENTITLEMENT, seen, {"phase": phase})
    await case.project.deploy("web", ["DFW"])
    await case.advance(120)
    case.check("access", "AccessPending", "admin", words)


async def test_a_network_that_does_not_exist(case: Case) -> None:
    await case.project.client.delete(NETWORK, "default", "default")
    await case.advance(5)
    await case.project.deploy("web", ["DFW"])
    await case.advance(30)
    case.check("network", "NetworkNotFound", "you", "network default does not exist")


async def test_a_paused_rollout(case: Case) -> None:
    await deployed(case)
    await case.project.client.merge_patch(
        WORKLOAD, "web", "default", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}}
    )
    await case.advance(5)
    await case.project.set_image("web", OTHER_IMAGE)
    await case.advance(60)
    case.check("rollout", "RolloutPaused", "you", "resume")


async def test_management_that_does_not_run(case: Case) -> None:
    case.engine.stop_controllers(*MANAGEMENT)
    await case.project.deploy("web", ["DFW"])
    await case.advance(120)
    case.check("manager", "Unanswered", "platform", "nobody has looked at it")


async def test_a_project_that_is_not_served(case: Case) -> None:
    await deployed(case)
    await case.engine.suspend("demo")
    await case.project.set_image("web", OTHER_IMAGE)
    await case.advance(120)
    case.check("manager", "Unanswered", "platform", "demo is not served at the moment")
    await case.engine.resume("demo")


async def test_two_workloads_with_one_deployment_name(case: Case) -> None:
    for name, placement in (("a-b", "c"), ("a", "b-c")):
        spec = {"name": placement, "cityCodes": ["DFW"], "scaleSettings": {"minReplicas": 1}}
        body = WORKLOAD.body(name, "default")
        await case.project.client.create(WORKLOAD, body | {"spec": {"template": template(), "placements": [spec]}})
        await case.advance(10)
    case.check("deployment", "DeploymentNameTaken", "you", "belongs to workload a-b", name="a")


# The way


async def test_a_city_that_no_site_serves(case: Case) -> None:
    await case.engine.hub.merge_patch(CLUSTER, "cell-dfw", "", {"metadata": {"labels": {TOPOLOGY_CITY: None}}})
    await case.project.deploy("web", ["DFW"])
    await case.advance(120)
    case.check("site", "NoMatchingLocation", "platform", "o site serves ")


async def test_a_site_that_spells_its_city_otherwise(case: Case) -> None:
    await case.engine.hub.merge_patch(CLUSTER, "cell-dfw", "", {"metadata": {"labels": {TOPOLOGY_CITY: "dfw"}}})
    await case.project.deploy("web", ["DFW"])
    await case.advance(50)
    case.check_way()
    await case.advance(70)
    words = 'cell-dfw serves "dfw", asked is "DFW"'
    case.check("site", "NoMatchingLocation", "platform", words, (OPERATOR, LOCAL))


async def test_a_site_that_is_away(case: Case) -> None:
    await deployed(case)
    await case.engine.take_away("cell-dfw")
    await case.advance(60)
    await case.command(USER)(f"deploy web --image={OTHER_IMAGE} --no-wait --no-save -y")
    await case.advance(40)
    words = "no word from DFW; what runs there goes on"
    case.check("site", "SiteAway", "platform", words, (OPERATOR, LOCAL))
    case.check_way()
    assert case.ask(USER)["sentence"] == (
        "web is on its way in DFW: the request is on its way to the site, for 40s; normal under 2m. Nothing to do."
    )
    await case.engine.bring_back("cell-dfw")


async def test_a_site_that_is_away_while_nothing_is_requested(case: Case) -> None:
    await deployed(case)
    await case.engine.take_away("cell-dfw")
    await case.advance(120)
    for form in FORMS:
        answer = case.ask(form)
        assert answer["verdict"] == "fine"
        assert bool(answer["notes"]) == (form != USER)
    await case.engine.bring_back("cell-dfw")


async def test_a_hub_that_is_away(case: Case) -> None:
    await deployed(case)
    await case.engine.take_away("hub")
    await case.project.set_image("web", OTHER_IMAGE)
    await case.advance(60)
    case.check("hub", "FederationFailed", "platform", "he way to the site")
    await case.engine.bring_back("hub")


async def sent(case: Case) -> str:
    """A deployment that the federator wrote and does not look at any more, while nothing takes it to the cell."""
    case.engine.stop_controllers("propagation")
    await case.project.deploy("web", ["DFW"])
    home = await case.project.hub_namespace()
    await case.federation.until(lambda: is_routed(case, home), "the hub has deployment and policy")
    case.engine.stop_controllers("workload-deployment-federator")
    return home


async def is_routed(case: Case, home: str) -> bool:
    return await case.engine.hub.find(PROPAGATION_POLICY, "city-dfw", home) is not None


async def test_a_policy_that_is_missing(case: Case) -> None:
    home = await sent(case)
    await case.engine.hub.delete(PROPAGATION_POLICY, "city-dfw", home)
    await case.advance(120)
    case.check("policy", "PolicyMissing", "platform", "nothing routes DFW", (OPERATOR, LOCAL))
    case.check_way("stalled")


async def test_a_policy_that_was_edited(case: Case) -> None:
    home = await sent(case)
    narrowed = {"spec": {"placement": {"clusterAffinity": {"clusterNames": ["cell-ord"]}}}}
    await case.engine.hub.merge_patch(PROPAGATION_POLICY, "city-dfw", home, narrowed)
    await case.advance(120)
    case.check("policy", "PolicyEdited", "platform", "narrowed to cell-ord by hand", (OPERATOR, LOCAL))
    case.check_way("stalled")


async def test_a_cell_that_does_not_act(case: Case) -> None:
    case.engine.stop_controllers("workloaddeployment")
    await case.project.deploy("web", ["DFW"])
    await case.advance(120)
    case.check("cell", "Unanswered", "platform", "DFW has it and does not act", (OPERATOR, LOCAL))
    case.check_way("stalled")


async def test_a_hub_that_refuses(case: Case) -> None:
    await deployed(case)
    refused = case.engine.local.faults["hub"].refuse(writes, Forbidden("no", plane="hub"))
    await case.project.set_image("web", OTHER_IMAGE)
    await case.advance(60)
    case.check("hub", "FederationFailed", "platform", "not allowed to write there")
    refused.lift()


async def test_a_hub_namespace_that_is_being_removed(case: Case) -> None:
    await deployed(case)
    home = await case.project.hub_namespace()
    await case.engine.hub.merge_patch(NAMESPACE, home, "", {"metadata": {"finalizers": ["example.com/hold"]}})
    await case.engine.hub.delete(NAMESPACE, home)
    await case.project.set_image("web", OTHER_IMAGE)
    await case.advance(60)
    words = "is being removed, held by example.com/hold"
    case.check("hub", "NamespaceTerminating", "platform", words, (OPERATOR, LOCAL))


async def test_an_operator_needs_no_more_than_the_roles_of_a_viewer(case: Case) -> None:
    home = await sent(case)
    await case.engine.hub.delete(PROPAGATION_POLICY, "city-dfw", home)
    await case.advance(120)
    command = case.command(OPERATOR)
    command.look(case.line(OPERATOR, "why web"))
    used = [(plane, call) for plane, call in zip(command.planes, command.calls, strict=True) if plane != "demo"]
    assert {plane for plane, _ in used} == {"hub", "cell-dfw"}
    assert len(used) <= 6
    for plane, call in used:
        rules = PERMISSIONS[Who.VIEWER, On.HUB if plane == "hub" else On.CELL]
        roots = {f"/apis/{rule.group}/" if rule.group else "/api/": rule.resources for rule in rules}
        group = next(root for root in roots if call.path.startswith(root))
        allowed = [resource for rule in rules if rule.group in group.split("/") for resource in rule.resources]
        assert call.method == "GET"
        assert call.path.rpartition("/")[2] in (*allowed, home), call.path


# The site


async def test_quota_that_is_used_up(runner: asyncio.Runner, simulation: Simulation, tmp_path: Path) -> None:
    engine = EmbeddedFederation(simulation, BEHAVIOUR, limits={INSTANCES: 1})
    await engine.start()
    case = Case(engine, simulation, tmp_path)
    await case.project.deploy("web", ["DFW"], 2)
    await case.advance(120)
    case.check("gates", "QuotaExceeded", "you", "quota exceeded: ")
    for form in FORMS:
        answer = case.ask(form)
        assert answer["next"]["do"] == ["compute", "scale", "web", "--min=1"]
        assert answer["cities"][0]["instance"] == "web-main-dfw-1"
    command = case.command(USER)
    command.look("why web")
    assert len(command.calls) <= 9
    await engine.stop()


async def test_quota_that_cannot_be_asked(case: Case) -> None:
    """The project is out of reach of its site; only the site itself knows of the instance."""
    await case.project.deploy("web", ["DFW"], 1)
    cell, home = case.engine.cells["DFW"], await case.project.hub_namespace()

    async def is_delivered() -> bool:
        return await cell.find(WORKLOAD_DEPLOYMENT, "web-main-dfw", home) is not None

    case.engine.stop_controllers("quota-broker")
    await case.federation.until(is_delivered, "the cell has the deployment")
    await case.engine.take_away("demo")
    await case.advance(120)
    case.check("gates", "QuotaBackendUnavailable", "platform", "quota cannot be asked", (OPERATOR, LOCAL))
    await case.engine.bring_back("demo")


async def test_a_request_for_quota_that_nobody_decides(case: Case) -> None:
    case.engine.stop_controllers("quota-broker")
    await case.project.deploy("web", ["DFW"])
    await case.advance(90)
    case.check("gates", "QuotaNoBudget", "platform", "nobody has decided the request")


async def test_a_claim_that_belongs_to_another_instance(case: Case) -> None:
    labels = {SOURCE_CLUSTER: "cell-ord", INSTANCE_NAMESPACE: "ns-other"}
    body = RESOURCE_CLAIM.body("instance-web-main-dfw-0", "default", labels=labels)
    consumer = {"kind": "Project", "name": "demo", "apiGroup": "resourcemanager.miloapis.com"}
    spec = {"consumerRef": consumer, "requests": [{"resourceType": INSTANCES, "amount": 1}]}
    await case.project.client.create(RESOURCE_CLAIM, body | {"spec": spec})
    await case.project.deploy("web", ["DFW"], 1)
    await case.advance(90)
    case.check("gates", "QuotaMisconfigured", "platform", "belongs to another instance of that name")


async def test_a_network_that_takes_too_long(case: Case) -> None:
    case.engine.stop_controllers("network")
    await case.project.deploy("web", ["DFW"], 1)
    await case.advance(16 * 60)
    case.check("gates", "NetworkProvisioning", "stalled", "network is being")
    assert "for 16m; normal under 15m" in case.ask(USER)["sentence"]


@pytest.mark.parametrize(
    ("tag", "reason", "words"),
    [
        ("image-unavailable", "ImageUnavailable", "cannot be pulled"),
        ("out-of-memory", "InstanceCrashing", "used more memory than its 2048Mi"),
        ("crashing", "InstanceCrashing", "the process keeps exiting"),
    ],
)
async def test_an_instance_that_does_not_start(case: Case, tag: str, reason: str, words: str) -> None:
    await case.project.deploy("web", ["DFW"], 1, f"registry.example/hello:{tag}")
    await case.advance(60)
    case.check("runtime", reason, "you", words)


async def test_a_gate_that_nobody_removes(case: Case) -> None:
    case.engine.stop_controllers("simulated-provider")
    await case.project.deploy("web", ["DFW"], 1)
    cell, home = case.engine.cells["DFW"], await case.project.hub_namespace()
    await case.advance(10)
    gated = {"spec": {"controller": {"schedulingGates": [{"name": "Other"}]}}}
    await cell.merge_patch(INSTANCE, "web-main-dfw-0", home, gated)
    await case.advance(60)
    case.check("gates", "SchedulingGatesPresent", "platform", "gate Other, which nobody here removes")


async def test_an_instance_whose_name_is_taken(case: Case) -> None:
    await deployed(case, replicas=1)
    cell, home = case.engine.cells["DFW"], await case.project.hub_namespace()
    first = await cell.get(INSTANCE, "web-main-dfw-0", home)
    body = INSTANCE.body("web-main-dfw-1", home) | {"spec": json.loads(bytes(first.spec_json))}
    body["spec"].pop("controller", None)
    await cell.create(INSTANCE, body)
    await case.project.place("web", ["DFW"], 2)
    await case.advance(60)
    case.check("instances", "InstanceNameTaken", "platform", "something else has that name")


async def test_a_site_without_a_provider(case: Case) -> None:
    case.engine.stop_controllers("simulated-provider")
    await case.project.deploy("web", ["DFW"], 1)
    await case.advance(11 * 60)
    case.check("runtime", "PendingProgramming", "stalled", "no provider has touched it", (OPERATOR, LOCAL))
    case.check("runtime", "PendingProgramming", "stalled", "has not started setting it up", (USER,))


async def test_an_old_instance_that_is_slow_to_stop(case: Case) -> None:
    await case.project.deploy("web", ["DFW"], 1, "registry.example/hello:slow-stop")
    await case.project.until_ready("web", 1)
    await case.project.restart("web", "2026-11-02T12:00:00Z")
    await case.advance(20)
    case.check("instances", "Stopping", "wait", "stopping")


async def test_a_site_whose_clock_is_ahead(case: Case) -> None:
    case.engine.clock("cell-dfw").ahead = 600.0
    await case.project.deploy("web", ["DFW"], 1, "registry.example/hello:crashing")
    await case.advance(60)
    for form in (OPERATOR, LOCAL):
        assert any("The clock of DFW is ahead (ClockAhead)" in note for note in case.ask(form)["notes"])
    case.check("runtime", "InstanceCrashing", "you", "keeps exiting")


# The way back


async def test_a_reader_who_may_not_list_instances(case: Case) -> None:
    await deployed(case)
    await case.project.set_image("web", "registry.example/hello:crashing")  # one of two still serves
    await case.advance(60)
    case.denies = lambda call: INSTANCE.serves(call.path)
    answer = case.ask(USER)
    assert (answer["reason"], answer["who"], answer["verdict"]) == ("NotReadable", "admin", "unknown")
    assert answer["message"] == "you may not list instances in demo"


async def test_a_status_that_does_not_come_back(case: Case) -> None:
    await deployed(case, replicas=1)
    await case.project.place("web", ["DFW"], 2)
    home = await case.project.hub_namespace()

    async def is_sent() -> bool:
        copy = await case.engine.hub.get(WORKLOAD_DEPLOYMENT, "web-main-dfw", home)
        return copy.spec.scale_settings.min_replicas == 2

    await case.federation.until(is_sent, "the hub has the new scale")
    case.engine.stop_controllers("workload-deployment-federator")
    await case.advance(120)
    case.check("back", "StatusNotReturned", "stalled", "the hub knows 2 ready, the project", (OPERATOR, LOCAL))


async def test_instances_that_are_not_shown(case: Case) -> None:
    case.engine.stop_controllers("instance-projector")
    await case.project.deploy("web", ["DFW"], 2)
    await case.advance(120)
    case.check("projection", "ProjectionMissing", "platform", "2 run, 0 are shown")


# The end


async def test_a_deletion_that_somebody_holds(case: Case) -> None:
    await deployed(case, replicas=1)
    workload = await case.project.workload("web")
    assert workload is not None
    finalizers = [*workload.metadata.finalizers, "example.com/hold"]
    await case.project.client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"finalizers": finalizers}})
    await case.project.delete("web")
    await case.advance(185)
    case.check("deletion", "HeldByFinalizer", "you", "waits for example.com/hold")
    assert case.ask(USER)["sentence"] == "web is being deleted: it waits for example.com/hold, for 3m. You can act."


async def test_a_deletion_that_waits_for_a_provider_which_does_not_run(case: Case) -> None:
    await deployed(case, replicas=1)
    cell, home = case.engine.cells["DFW"], await case.project.hub_namespace()
    held = await cell.get(INSTANCE, "web-main-dfw-0", home)
    finalizers = [*held.metadata.finalizers, OTHER_PROVIDER]
    await cell.merge_patch(INSTANCE, "web-main-dfw-0", home, {"metadata": {"finalizers": finalizers}})
    await case.engine.take_away("hub")  # so that the workload is still there to be asked about
    await case.project.delete("web")
    await cell.delete(INSTANCE, "web-main-dfw-0", home)
    await case.advance(185)
    words = "waits for other-provider, which does not act here"
    case.check("deletion", "HeldByFinalizer", "platform", words, (OPERATOR, LOCAL))
    await case.engine.bring_back("hub")


# Everywhere the same


@pytest.mark.parametrize("tag", ["crashing", "image-unavailable", "configuration-error"])
async def test_every_command_says_the_same_sentence(case: Case, tag: str) -> None:
    await deployed(case, ("DFW", "ORD"))
    command = case.command(USER)
    late = await command(f"deploy web --image=registry.example/hello:{tag} --wait --timeout=50s --no-save -y")
    assert late.code == 5
    sentence = command.look("why web").out.splitlines()[0]
    assert sentence.startswith("web is held up in ")
    assert f"  {sentence}" in late.err.splitlines()
    assert json.loads(command.look("status web -o json").out)["why"] == sentence
    assert f"  {sentence}" in command.look("status web").out.splitlines()
    assert json.loads(command.look("why -o json").out)[0]["sentence"] == sentence


async def test_every_command_says_the_same_sentence_about_a_site_that_is_away(case: Case) -> None:
    await deployed(case)
    await case.engine.take_away("cell-dfw")
    command = case.command(USER)
    late = await command(f"deploy web --image={OTHER_IMAGE} --wait --timeout=50s --no-save -y")
    assert late.code == 5
    sentence = command.look("why web").out.splitlines()[0]
    assert "on its way" in sentence
    assert f"  {sentence}" in late.err.splitlines()
    assert f"  {sentence}" in command.look("status web").out.splitlines()
    await case.engine.bring_back("cell-dfw")


# What happened


async def test_the_events_of_a_site_and_their_echo_are_one_row(case: Case) -> None:
    await case.project.deploy("web", ["DFW"], 1, "registry.example/hello:crashing")
    await case.advance(30)
    found = {}
    for form in FORMS:
        result = case.command(form).look(case.line(form, "events web -o json"))
        assert result.code == 0, result.err
        found[form] = json.loads(result.out)["events"]
    crashes = {form: [row for row in rows if row["reason"] == "InstanceCrashing"] for form, rows in found.items()}
    of_events = {
        form: [row for row in rows if " is False" not in row["text"] and " is Unknown" not in row["text"]]
        for form, rows in crashes.items()
    }
    assert {form: len(rows) for form, rows in of_events.items()} == dict.fromkeys(FORMS, 1)
    assert [row["time"] for row in found[USER]] == sorted(row["time"] for row in found[USER])
    assert {row["city"] for row in found[USER]} == {None, "DFW"}
    assert {row["plane"] for row in found[OPERATOR]} >= {"project", "cell"}
