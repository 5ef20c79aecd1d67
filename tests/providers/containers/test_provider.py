"""Instances in containers of an engine: what is done and reported, whatever is found, in the dialects of both."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import CONTAINERS_FINALIZER as FINALIZER
from datum_compute.kube.meta import Json
from datum_compute.providers.engine.interface import Refused
from datum_compute.runtime.testing.simulation import Simulation
from tests.providers.container_site import COMPUTE, HASH, HELPER, IMAGE, WEB, Site, model_of
from tests.providers.engine_boxes import Dialect, Image
from tests.providers.engine_model import EngineModel, Mishap

PROVISIONING = ("Unknown", "Provisioning", "The instance is being provisioned")
AVAILABLE = ("True", "Available", "The instance is available")
STARTING = ("False", "Starting", "The instance is starting")
NAME = "datum-abcdef01-demo-web-0-"


@pytest.fixture(params=list(Dialect))
def model(request: pytest.FixtureRequest, simulation: Simulation) -> EngineModel:
    return model_of(request.param, simulation)


@pytest.fixture
def site(runner: asyncio.Runner, simulation: Simulation, model: EngineModel) -> Iterator[Site]:
    site = Site(simulation, model)
    runner.run(site.start())
    yield site
    runner.run(site.stop())


async def refusal(site: Site, **container: Any) -> tuple[str, str, str]:
    await site.create(WEB | container)
    return await site.report()


# Starting


@pytest.mark.parametrize("gates", [["Quota"], ["Network", "Quota"]])
async def test_nothing_happens_while_a_gate_is_left(site: Site, gates: list[str]) -> None:
    await site.create(gates=gates)
    assert (await site.instance()).metadata.finalizers == (COMPUTE,)
    assert (site.boxes, site.writes.total()) == ([], 0)


async def test_an_instance_becomes_available_once_it_has_run_for_a_second(site: Site, simulation: Simulation) -> None:
    await site.create()
    assert site.box.status == "running"
    assert site.box.name.startswith(NAME)
    assert await site.report() == STARTING
    assert await site.programmed() == "Starting"
    await simulation.advance(0.9)
    assert await site.report() == STARTING
    await simulation.advance(0.1)
    assert await site.report() == AVAILABLE
    instance = await site.instance()
    assert FINALIZER in instance.metadata.finalizers
    assert instance.status is not None
    assert instance.status.controller is not None
    assert instance.status.controller.observed_template_hash == HASH


async def test_the_finalizer_is_there_before_the_first_container(site: Site) -> None:
    seen: list[bool] = []

    def look(call: str) -> None:
        cached = site.fleet.plane("cell").informer(INSTANCE).get("ns", "web-0")
        if call.startswith("create"):
            seen.append(cached is not None and FINALIZER in cached.metadata.finalizers)

    site.model.after_call = look
    await site.create()
    assert seen == [True, True]  # the network, and the container


async def test_addresses_and_the_first_tcp_port_are_reported(site: Site) -> None:
    dns: Json = {"name": "dns", "port": 53, "protocol": "UDP"}
    await site.create(WEB | {"ports": [dns, {"name": "http", "port": 8080}]})
    await site.until_available()
    address, external = await site.addresses()
    assert address == site.box.addresses["datum-abcdef01-dfw"]
    assert external == f"127.0.0.1:{site.box.ports['8080/tcp']}"
    instance = await site.instance()
    assert site.provider.published() == {instance.metadata.uid: site.box.ports}


async def test_an_instance_without_ports_is_reached_only_in_its_network(site: Site) -> None:
    await site.create(HELPER)
    await site.until_available()
    address, external = await site.addresses()
    assert address
    assert external == ""


async def test_networks_are_made_when_they_are_needed_and_have_our_label(site: Site) -> None:
    assert site.model.networks_there == {}
    await site.create()
    assert site.model.networks_there == {
        "datum-abcdef01-dfw": {"compute.datumapis.com/local": "abcdef0123456789abcdef0123456789"}
    }


async def test_nothing_is_written_at_rest(site: Site, simulation: Simulation) -> None:
    for number in range(5):
        await site.create(name=f"web-{number}")
    await simulation.advance(2)
    before, looks = site.writes.total(), len(site.model.calls)
    await simulation.advance(3600)
    assert site.writes.total() == before
    assert len(site.model.calls) - looks < 6 * (5 * 3 + 3)  # a list in ten minutes, and a look at each


async def test_a_start_takes_few_writes(site: Site) -> None:
    await site.create()
    await site.until_available()
    assert site.writes.total() == 4  # the finalizer, provisioning, starting, available


# What cannot run


async def test_virtual_machines_do_not_run_here(site: Site) -> None:
    machine = {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "virtualMachine": {"volumeAttachments": [{"name": "boot"}]},
    }
    await site.create(runtime=machine)
    assert await site.report() == (
        "Unknown",
        "ConfigurationError",
        "Virtual machines do not run here, only containers do",
    )
    assert (await site.instance()).metadata.finalizers == (COMPUTE,)
    await site.delete()
    await site.gone()


async def test_a_spec_that_no_container_can_have_is_named(site: Site) -> None:
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "a"}}}]
    assert await refusal(site, env=env) == (
        "Unknown",
        "ConfigurationError",
        "Container web cannot run here: env KEY takes its value from a Secret, and there are none here yet",
    )
    assert site.boxes == []


async def test_a_program_that_is_not_in_the_image(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(programs=("/bin/web",))
    assert await refusal(site, command=["/bin/absent"]) == (
        "Unknown",
        "ConfigurationError",
        "The command /bin/absent of container web is not in the image",
    )
    calls = len(site.model.calls)
    await simulation.advance(290)
    assert len(site.model.calls) == calls
    site.model.images[IMAGE] = Image(programs=("/bin/web", "/bin/absent"))
    await simulation.advance(11)
    assert await site.report() == AVAILABLE
    assert len(site.boxes) == 1


async def test_an_image_for_another_processor(site: Site) -> None:
    site.model.images[IMAGE] = Image(other_processor=True)
    assert await refusal(site) == ("Unknown", "ConfigurationError", f"The image {IMAGE} is for another processor")


async def test_an_image_for_another_processor_that_the_engine_starts_all_the_same(
    site: Site, simulation: Simulation
) -> None:
    site.model.images[IMAGE] = Image(exits=1, run_seconds=0.1)
    await site.create()
    site.model.write(site.box.name, "exec /bin/web: exec format error\n", "stderr")
    await simulation.advance(1)
    assert await site.report() == ("Unknown", "ConfigurationError", f"The image {IMAGE} is for another processor")
    starts = site.box.starts
    await simulation.advance(290)
    assert site.box.starts == starts
    site.model.images[IMAGE] = Image()
    await simulation.advance(15)
    assert await site.report() == AVAILABLE


@pytest.mark.parametrize("call", ["create", "start"])
async def test_another_refusal_is_quoted_and_tried_again(site: Site, simulation: Simulation, call: str) -> None:
    site.model.trouble(call, Refused(500, "the moon is full"), times=2)
    assert await refusal(site) == (
        "Unknown",
        "ConfigurationError",
        "The container engine refused container web: the moon is full",
    )
    await simulation.advance(31)
    assert (await site.report())[1] == "ConfigurationError"
    await simulation.advance(58)
    assert (await site.report())[1] == "ConfigurationError"
    await simulation.advance(2.5)
    assert await site.report() == AVAILABLE
    assert len(site.boxes) == 1


async def test_a_refusal_that_did_happen_counts_for_nothing(site: Site) -> None:
    """Some engines answer with an error after all was done."""
    create, start = site.model._create, site.model._start

    def broken(done: Any) -> Any:
        def act(*arguments: Any) -> Any:
            done(*arguments)
            raise Refused(500, "something went wrong")

        return act

    site.model._create, site.model._start = broken(create), broken(start)  # type: ignore[method-assign]
    await site.create()
    await site.until_available()


async def test_a_taken_port_is_given_up_for_another_three_times_at_once(site: Site, simulation: Simulation) -> None:
    site.model.taken_ports = 3
    await site.create()
    assert await site.report() == STARTING
    assert sum(call.startswith("create datum") for call in site.model.calls) == 4


async def test_ports_that_stay_taken_are_tried_every_ten_seconds(site: Site, simulation: Simulation) -> None:
    site.model.taken_ports = 5
    await site.create()
    assert await site.report() == PROVISIONING
    await simulation.advance(9)
    assert await site.report() == PROVISIONING
    await simulation.advance(13)
    assert await site.report() == AVAILABLE


@pytest.mark.parametrize("when", ["create", "start", "pull"])
async def test_a_full_disk_is_waited_for(site: Site, simulation: Simulation, when: str) -> None:
    if when == "pull":
        site.model.registry["far:1"] = Image()
    site.model.full = when != "start"
    if when == "start":
        site.model.trouble("start", Refused(500, "write /run/x: no space left on device"))
    await site.create(WEB | {"image": "far:1" if when == "pull" else IMAGE})
    assert await site.report() == (
        "Unknown",
        "Provisioning",
        "The instance waits for room at the site: the disk of the container engine is full",
    )
    site.model.full = False
    await simulation.advance(28)
    assert (await site.report())[1] == "Provisioning"
    await simulation.advance(4)
    assert await site.report() == AVAILABLE


async def test_a_name_that_somebody_else_has_is_waited_for(site: Site, simulation: Simulation) -> None:
    instance = await site.create(gates=["Quota"])
    name = f"{NAME}{instance.metadata.uid[:8]}"
    other = site.model._create(name, {"Image": IMAGE, "Labels": {"compute.datumapis.com/local": "another"}})
    await site.patch({"spec": {"controller": {"schedulingGates": []}}})
    assert await site.report() == (
        "Unknown",
        "Provisioning",
        "The site still has something else of the instance's name",
    )
    await simulation.advance(60)
    assert list(site.model.boxes.values()) == [other]
    site.model.remove_by_hand(name)
    await simulation.advance(11)
    assert await site.report() == AVAILABLE


async def test_the_container_of_a_lost_instance_of_the_name_is_removed_first(site: Site) -> None:
    await site.create()
    lost = site.box
    lost.labels["compute.datumapis.com/instance-uid"] = "another"
    lost.name = "datum-abcdef01-demo-web-0-another"
    site.model.start_by_hand(lost.name)
    site.controller.enqueue(next(iter(site.provider._memories)))
    await site.settle()
    assert site.box.id != lost.id
    await site.until_available()


# Ends


async def test_a_container_that_ends_is_started_again_at_once(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    box = site.box
    site.model.end(box.name, 3)
    await simulation.settle()
    assert (box.status, box.starts) == ("running", 2)
    assert await site.report() == STARTING
    await site.until_available()


async def test_the_first_crash_is_reported_before_the_container_is_started_again(site: Site) -> None:
    await site.create()
    await site.until_available()
    site.model.trouble("start", Mishap.LOST)
    site.model.end(site.box.name, 3)
    await site.settle()
    assert await site.report() == (
        "False",
        "InstanceCrashing",
        "The instance failed and will be started again (exit code 3)",
    )
    assert await site.programmed() == "InstanceCrashing"


async def test_a_container_that_keeps_ending_waits_longer_each_time(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(exits=3, run_seconds=0.5)
    await site.create()
    box, starts = site.box, list[int]()
    for _ in range(4 * 200):
        if box.started not in starts:
            starts.append(box.started)
        await simulation.advance(0.25)
    gaps = [round((later - earlier) / 10**9, 3) for earlier, later in pairwise(starts)]
    assert gaps == [0.5, 1.5, 2.5, 4.5, 8.5, 16.5, 32.5, 60.5, 60.5]
    status, reason, message = await site.report()
    assert (status, reason) == ("Unknown", "InstanceCrashing")
    assert message == f"The instance keeps failing: exit code 3, {box.starts} times in a row"


async def test_a_minute_of_running_forgives_earlier_crashes(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    for _ in range(2):
        site.model.end(site.box.name, 3)
        await simulation.advance(3)
    site.model.end(site.box.name, 3)
    await site.settle()
    assert (await site.report())[2] == "The instance keeps failing: exit code 3, 3 times in a row"
    await simulation.advance(70)
    assert await site.report() == AVAILABLE
    site.model.end(site.box.name, 3)
    await site.settle()
    assert await site.report() == STARTING


async def test_what_used_too_much_memory_is_reported_so(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(out_of_memory=True, run_seconds=0.1)
    await site.create()
    await simulation.advance(0.5)
    likely = "" if site.model.dialect is Dialect.DOCKER else "most likely "
    assert await site.report() == (
        "Unknown",
        "InstanceCrashing",
        f"The instance keeps failing: {likely}it used more than its 2048 MiB of memory, 2 times in a row",
    )


async def test_an_image_that_dies_at_once_is_never_available(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(exits=0, run_seconds=0.9)
    await site.create()
    for _ in range(200):
        await simulation.advance(0.5)
        assert (await site.report())[0] != "True"


# By hand


async def test_a_removed_container_is_made_anew_at_once_and_did_not_crash(site: Site) -> None:
    await site.create()
    await site.until_available()
    before = site.box
    site.model.remove_by_hand(before.name)
    await site.settle()
    assert site.box.id != before.id
    assert await site.report() == STARTING
    await site.until_available()
    assert (await site.addresses())[1] == f"127.0.0.1:{site.box.ports['8080/tcp']}"


async def test_a_paused_container_is_left_alone(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.model.pause(site.box.name)
    await site.settle()
    assert await site.report() == ("Unknown", "Unknown", "The instance was paused on this machine")
    await simulation.advance(3600)
    assert site.box.status == "paused"
    site.model.resume(site.box.name)
    await site.settle()
    assert await site.report() == AVAILABLE


async def test_a_container_that_was_started_by_hand_while_ours_waits_is_taken_as_it_is(
    site: Site, simulation: Simulation
) -> None:
    await site.create()
    await site.until_available()
    for _ in range(7):
        site.model.end(site.box.name, 1)
        await simulation.advance(1)
    assert site.box.status == "exited"
    starts = site.box.starts
    site.model.start_by_hand(site.box.name)
    await site.settle()
    assert await site.report() == STARTING
    await simulation.advance(60)
    assert (await site.report(), site.box.starts) == (AVAILABLE, starts + 1)


async def test_a_changed_port_is_written_again(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    site.box.ports = {"8080/tcp": 40001}
    site.box.addresses = {"datum-abcdef01-dfw": "10.1.1.1"}
    site.model.emit("restart", site.box.id, site.box.labels)
    await site.settle()
    assert await site.addresses() == ("10.1.1.1", "127.0.0.1:40001")


async def test_a_second_container_for_the_same_instance_is_removed(site: Site, simulation: Simulation) -> None:
    await site.create()
    await site.until_available()
    first = site.box
    await simulation.advance(5)
    second = site.model._create("twin", first.body)
    await site.settle()
    assert second.id not in site.model.boxes
    assert site.box is first


# Several containers


async def test_the_others_join_the_network_of_the_first(site: Site) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    first, second = site.boxes
    assert (first.status, second.status) == ("running", "running")
    assert second.network_owner == first.id
    assert second.name == f"{first.name}.helper"


async def test_when_the_first_ends_all_are_started_again_in_order(site: Site, simulation: Simulation) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    first, second = site.boxes
    site.model.end(first.name, 3)
    await simulation.settle()
    assert [box.status for box in site.boxes] == ["running", "running"]
    assert [box.id for box in site.boxes] == [first.id, second.id]
    assert second.started > first.started
    await site.until_available()
    site.model.end(second.name, 3)
    await site.settle()
    await site.until_available()
    assert (first.starts, second.starts) == (2, 3)


async def test_when_the_first_is_removed_all_are_made_anew(site: Site) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    before = [box.id for box in site.boxes]
    first = site.boxes[0]
    site.model.boxes.pop(first.id)  # some engines let the owner of a network go first
    site.model.emit("destroy", first.id, first.labels)
    await site.settle()
    assert not set(before) & {box.id for box in site.boxes}
    await site.until_available()
    assert site.boxes[1].network_owner == site.boxes[0].id


async def test_another_container_that_is_removed_is_made_anew_alone(site: Site) -> None:
    await site.create(WEB, HELPER)
    await site.until_available()
    first, second = site.boxes
    site.model.remove_by_hand(second.name)
    await site.settle()
    assert [box.id == first.id for box in site.boxes] == [True, False]
    await site.until_available()


# The end


async def test_a_deleted_instance_is_released_when_its_containers_are_gone(site: Site, simulation: Simulation) -> None:
    site.model.images[IMAGE] = Image(stop_seconds=4)
    await site.create(WEB, HELPER)
    await site.until_available()
    await site.delete()
    assert await site.report() == ("False", "Stopping", "The instance is stopping")
    await simulation.advance(3.9)
    assert FINALIZER in (await site.instance()).metadata.finalizers
    await simulation.advance(0.2)
    assert site.boxes == []
    await site.gone()
    assert site.provider.published() == {}


async def test_an_instance_is_not_released_while_a_list_still_has_a_container(
    site: Site, simulation: Simulation
) -> None:
    await site.create()
    await site.until_available()
    site.model.trouble("remove", Refused(500, "device busy"), times=3)
    await site.delete()
    assert FINALIZER in (await site.instance()).metadata.finalizers
    await simulation.advance(5)
    assert site.boxes == []
    await site.gone()


async def test_a_new_instance_of_the_name_gets_containers_of_its_own(site: Site) -> None:
    await site.create()
    await site.until_available()
    before = site.box.id
    await site.delete()
    await site.gone()
    await site.create()
    await site.until_available()
    assert site.box.id != before
