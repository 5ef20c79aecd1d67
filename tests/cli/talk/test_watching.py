"""Waiting for changes with real watches over real HTTP."""

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.talk.watching import Watches
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.transport import Call
from tests.cli.conftest import World
from tests.cli.server import ApiServer


def watches(api: ApiServer) -> Watches:
    transport = BlockingTransport(Endpoint(api.project_url()))
    path = "/apis/compute.datumapis.com/v1alpha/namespaces/default/workloads"
    return Watches(transport, [Call("GET", path, {"fieldSelector": "metadata.name=shop"})])


def until_quiet(changes: Watches) -> None:
    while changes.wait(0.05):
        pass


def test_a_change_wakes_the_waiter(api: ApiServer, world: World) -> None:
    world.workload()
    with watches(api) as changes:
        assert changes.wait(10)  # what was there before
        until_quiet(changes)
        assert changes.trusted
        api.patch(WORKLOAD, "shop", {"metadata": {"labels": {"a": "b"}}})
        assert changes.wait(10)


def test_objects_that_are_not_watched_do_not_wake(api: ApiServer, world: World) -> None:
    world.workload()
    with watches(api) as changes:
        assert changes.wait(10)
        until_quiet(changes)
        World(api, "other").workload()
        assert not changes.wait(0.05)


def test_a_watch_that_is_refused_is_not_trusted(api: ApiServer) -> None:
    api.answer("GET", "workloads", 403, times=10)
    with watches(api) as changes:
        assert not changes.wait(0.05)
        assert not changes.trusted


def test_leaving_ends_the_watches(api: ApiServer, world: World) -> None:
    world.workload()
    with watches(api) as changes:
        assert changes.wait(10)
        threads = list(changes._threads)
    assert not any(thread.is_alive() for thread in threads)
