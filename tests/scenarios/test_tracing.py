"""One deploy is one trace, from the command over the project and the hub to the cells and back."""

from pathlib import Path
from typing import Any

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.template_hash import template_hash
from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.client import Client
from datum_compute.kube.kinds import Kind
from datum_compute.kube.meta import as_dict, encode
from datum_compute.kube.tracing import ANNOTATION
from datum_compute.runtime.testing.simulation import Simulation
from tests.scenarios.command import Command
from tests.scenarios.embedded import CITIES, EmbeddedFederation
from tests.scenarios.federation import IMAGE, Federation, template
from tests.scenarios.life import BEHAVIOUR, REST_SECONDS
from tests.tracing import RecordedSpan, RecordedTracer

FIRST, SECOND = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318"}
KINDS: tuple[Kind[Any], ...] = (WORKLOAD_DEPLOYMENT, INSTANCE)
PLANES = {"demo", "hub", *CITIES.values()}
CONTROLLERS = {
    *("workload", "workload-deployment-federator", "instance-projector", "propagation"),
    *("workloaddeployment", "instance", "quota-gate", "write-back", "simulated-provider"),
}


async def test_one_deploy_is_one_connected_trace_over_all_planes(simulation: Simulation, tmp_path: Path) -> None:
    tracer = RecordedTracer(simulation.random)
    engine = EmbeddedFederation(simulation, BEHAVIOUR, tracer=tracer)
    await engine.start()
    server = engine.engine.plane("demo")
    assert server is not None
    command = Command(simulation, server, tmp_path, environ=ENDPOINT, tracer=tracer)
    for flags in (f"--image={IMAGE} --city=DFW,ORD --min=2", "--image=registry.example/hello:2"):
        done = await command(f"deploy web {flags} -y")
        assert done.code == 0, done.err
        await simulation.advance(REST_SECONDS)
    await engine.stop()

    roots = [span for span in tracer.spans if span.name == "compute deploy"]
    assert len({root.traceparent.trace_id for root in roots}) == len(roots) == 2
    for root in roots:
        trace = [span for span in tracer.spans if span.traceparent.trace_id == root.traceparent.trace_id]
        ids = {span.traceparent.span_id for span in trace}
        unconnected = [
            span for span in trace if span is not root and (not span.parent or span.parent.span_id not in ids)
        ]
        assert (root.parent, unconnected) == (None, [])
        assert {span.name for span in trace} >= CONTROLLERS
        assert {span.attributes["plane"] for span in trace} == PLANES
        assert _written_planes(trace) == PLANES
    # No pass over the objects of the workload is in another trace than that of a deploy.
    passes = [span for span in tracer.spans if span.name in CONTROLLERS and span.attributes["namespace"]]
    assert {span.traceparent.trace_id for span in passes} == {root.traceparent.trace_id for root in roots}


def _written_planes(spans: list[RecordedSpan]) -> set[str]:
    written: set[str] = set()
    for span in spans:
        planes = span.attributes.get("written_planes", ())
        assert isinstance(planes, tuple)
        written.update(planes)
    return written


async def _named(federation: Federation) -> dict[str, set[str | None]]:
    """The traces that the objects of all workloads name, by plane and kind."""
    home = await federation.project().hub_namespace()
    clients = {federation.project().client: "default", federation.hub: home, federation.cell("DFW").client: home}
    named: dict[str, set[str | None]] = {}
    for client, namespace in clients.items():
        for kind in KINDS:
            found = (await client.list(kind, namespace)).items
            named[f"{client.plane} {kind.name}"] = {object_.metadata.annotations.get(ANNOTATION) for object_ in found}
    return named


async def _annotate(client: Client, text: str) -> None:
    await client.merge_patch(WORKLOAD, "web", "default", {"metadata": {"annotations": {ANNOTATION: text}}})


async def _instances(federation: Federation) -> list[Instance]:
    return await federation.cell("DFW").instances("web")


async def test_a_trace_travels_with_a_spec_to_every_plane_and_never_alone(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], 1)
    await project.until_ready("web", 1)
    planes = [project.client.plane, federation.hub.plane, federation.cell("DFW").client.plane]
    [before] = await _instances(federation)
    assert set().union(*(await _named(federation)).values()) == {None}

    await _annotate(project.client, FIRST)
    assert set().union(*(await _named(federation)).values()) == {None}
    await project.place("web", ["DFW"], 2)
    await project.until_ready("web", 2)
    named = await _named(federation)
    assert [named[f"{plane} WorkloadDeployment"] for plane in planes] == [{FIRST}] * 3
    # The first instance was created before; the second one belongs to the trace.
    assert [named[f"{plane} Instance"] for plane in planes] == [{None, FIRST}] * 3

    await _annotate(project.client, SECOND)
    await project.place("web", ["DFW"], 1)
    await project.until_ready("web", 1)
    named = await _named(federation)
    assert [named[f"{plane} WorkloadDeployment"] for plane in planes] == [{SECOND}] * 3
    [after] = await _instances(federation)
    assert after.metadata.uid == before.metadata.uid, "nothing was rolled"


async def test_a_malformed_trace_is_ignored_and_goes_nowhere(federation: Federation) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], 1)
    await _annotate(project.client, "nonsense")
    await project.until_ready("web", 1)
    await project.place("web", ["DFW"], 2)
    await project.until_ready("web", 2)
    assert set().union(*(await _named(federation)).values()) == {None}


async def test_a_trace_alone_writes_nothing_and_is_not_in_the_template_hash(
    federation: Federation, embedded: EmbeddedFederation, simulation: Simulation
) -> None:
    project = federation.project()
    await project.deploy("web", ["DFW"], 2)
    await _annotate(project.client, FIRST)
    await project.until_ready("web", 2)
    await simulation.advance(REST_SECONDS)
    writes = embedded.local.writes.total()
    for trace in (SECOND, "nonsense", FIRST):
        await _annotate(project.client, trace)
        await simulation.advance(REST_SECONDS)
    assert embedded.local.writes.total() == writes, embedded.report()
    hashes = {as_dict(instance.spec_json)["controller"]["templateHash"] for instance in await _instances(federation)}
    assert hashes == {template_hash(encode(template()))}


async def test_a_traced_workload_at_rest_is_not_written_after_a_restart(simulation: Simulation) -> None:
    engine = EmbeddedFederation(simulation, BEHAVIOUR)
    await engine.start()
    federation = Federation(engine)
    project = federation.project()
    await project.deploy("web", ["DFW", "ORD"], 1)
    await project.until_ready("web", 2)
    await _annotate(project.client, FIRST)
    await project.place("web", ["DFW", "ORD"], 2)
    await project.until_ready("web", 4)
    await simulation.advance(REST_SECONDS)
    await engine.restart()
    await simulation.advance(REST_SECONDS)
    assert dict(engine.local.writes.counts) == {}
    await engine.stop()
