"""`destroy --wait` returns when everything has stopped, and names what has not."""

from collections.abc import Callable
from functools import partial

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import WORKLOAD_UID
from datum_compute.api.names import claim_name
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World
from tests.cli.server import ApiServer

GONE = "workload/shop is gone."


@pytest.fixture
def running(api: ApiServer, world: World) -> None:
    """A workload with an instance in each of two cities, whose deletion waits for a controller."""
    world.settled(replicas=1)
    api.patch(WORKLOAD, "shop", {"metadata": {"finalizers": ["example.com/controller"]}})


@pytest.fixture
def metered(world: World, running: None) -> None:
    for city in ("AMS", "DFW"):
        world.claim(city, 0)


class Later:
    """Acts when the command has slept for a while."""

    def __init__(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._due: list[tuple[float, Callable[[], object]]] = []
        sleep = clock.sleep

        def sleeping(seconds: float) -> None:
            sleep(seconds)
            for moment, act in [due for due in self._due if due[0] <= clock.monotonic()]:
                self._due.remove((moment, act))
                act()

        monkeypatch.setattr(clock, "sleep", sleeping)

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self._due.append((seconds, act))


@pytest.fixture
def later(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(clock, monkeypatch)


def withdraw(api: ApiServer) -> None:
    """What the controllers of the project do, which do not wait for the sites."""
    for instance in api.all(INSTANCE):
        api.delete(INSTANCE, instance.name)
    for deployment in api.all(WORKLOAD_DEPLOYMENT):
        api.delete(WORKLOAD_DEPLOYMENT, deployment.name)
    api.patch(WORKLOAD, "shop", {"metadata": {"finalizers": None}})


@pytest.mark.usefixtures("metered")
def test_it_is_gone_when_its_last_instance_has_stopped(
    api: ApiServer, compute: Compute, clock: FakeClock, later: Later
) -> None:
    later.after(2, lambda: withdraw(api))
    later.after(20, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-dfw-0")))
    later.after(60, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-ams-0")))
    result = compute("destroy", "shop", "-y", "--wait")
    assert (result.code, clock.monotonic()) == (0, 60)
    assert result.lines[-2:] == ["workload/shop is deleted; waiting for AMS, DFW to stop 2 instances.", GONE]


@pytest.mark.usefixtures("metered")
def test_a_city_that_does_not_stop_its_instances_in_time_is_named(
    api: ApiServer, compute: Compute, clock: FakeClock, later: Later
) -> None:
    later.after(2, lambda: withdraw(api))
    later.after(20, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-dfw-0")))
    result = compute("destroy", "shop", "-y", "--wait", "--timeout=5m")
    sentence = "workload/shop is deleted, but AMS did not stop 1 instance within 5m; the deletion continues"
    assert (result.code, result.err.splitlines()[0]) == (5, f"Error: {sentence}")
    assert GONE not in result.out
    assert clock.monotonic() == 300


@pytest.mark.usefixtures("metered")
def test_a_deletion_that_times_out_names_what_has_not_stopped(compute: Compute) -> None:
    result = compute("destroy", "shop", "-y", "--wait", "--timeout=1m")
    assert result.code == 5
    assert "workload/shop is still being deleted after 1m; the deletion continues" in result.err
    assert "Not stopped yet: 2 instances in AMS, DFW." in result.err


@pytest.mark.usefixtures("metered")
def test_a_claim_made_after_the_deletion_is_waited_for(
    api: ApiServer, compute: Compute, clock: FakeClock, later: Later, world: World
) -> None:
    """The site was about to make one more instance."""
    later.after(1, lambda: world.claim("AMS", 1))
    later.after(2, lambda: withdraw(api))
    later.after(5, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-ams-0")))
    later.after(5, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-dfw-0")))
    later.after(30, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-ams-1")))
    assert compute("destroy", "shop", "-y", "--wait").code == 0
    assert clock.monotonic() == 30


@pytest.mark.usefixtures("metered")
def test_claims_of_a_new_workload_of_the_name_are_not_waited_for(
    api: ApiServer, compute: Compute, clock: FakeClock, later: Later, world: World
) -> None:
    def replaced() -> None:
        withdraw(api)
        for ordinal in ("ams-0", "dfw-0"):
            api.delete(RESOURCE_CLAIM, claim_name(f"shop-default-{ordinal}"))
        world.workload()
        world.claim("AMS", 0)

    later.after(3, replaced)
    assert compute("destroy", "shop", "-y", "--wait").code == 0
    assert clock.monotonic() == 3


@pytest.mark.usefixtures("metered")
def test_instances_of_a_workload_that_is_replaced_at_once_are_waited_for(
    api: ApiServer, compute: Compute, clock: FakeClock, later: Later, world: World
) -> None:
    """By the claims that were noted before the deletion: afterwards the name belongs to the other workload."""

    def replaced() -> None:
        withdraw(api)
        world.workload()

    api.before("GET", "/workloads/shop", lambda: None)
    api.before("GET", "/workloads/shop", replaced)
    later.after(20, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-ams-0")))
    later.after(60, lambda: api.delete(RESOURCE_CLAIM, claim_name("shop-default-dfw-0")))
    assert compute("destroy", "shop", "-y", "--wait").lines[-1] == GONE
    assert clock.monotonic() == 60


@pytest.mark.usefixtures("metered")
def test_a_city_that_was_removed_before_and_has_not_stopped_is_named(
    api: ApiServer, compute: Compute, later: Later, world: World
) -> None:
    """Its deployment and instances are gone from the project; only their claims are left."""
    world.claim("SIN", 0, {WORKLOAD_UID: api.get(WORKLOAD, "shop").metadata.uid})
    later.after(2, lambda: withdraw(api))
    for city in ("ams", "dfw"):
        later.after(5, partial(api.delete, RESOURCE_CLAIM, claim_name(f"shop-default-{city}-0")))
    result = compute("destroy", "shop", "-y", "--wait", "--timeout=1m")
    assert "but SIN did not stop 1 instance within 1m" in result.err


@pytest.mark.usefixtures("metered")
def test_claims_of_an_earlier_workload_of_the_name_are_not_waited_for(
    api: ApiServer, compute: Compute, later: Later, world: World
) -> None:
    world.claim("AMS", 1, {WORKLOAD_UID: "earlier"})
    later.after(2, lambda: withdraw(api))
    for city in ("ams", "dfw"):
        later.after(5, partial(api.delete, RESOURCE_CLAIM, claim_name(f"shop-default-{city}-0")))
    assert compute("destroy", "shop", "-y", "--wait").lines[-1] == GONE


def test_a_claim_from_before_its_workload_was_restored_is_waited_for(
    api: ApiServer, compute: Compute, later: Later, running: None, world: World
) -> None:
    """The restored workload has another uid; its instances follow it, and claims are never changed."""
    world.claim("AMS", 0, {WORKLOAD_UID: "from-before"})
    later.after(2, lambda: withdraw(api))
    result = compute("destroy", "shop", "-y", "--wait", "--timeout=1m")
    assert "but AMS did not stop 1 instance within 1m" in result.err


@pytest.mark.usefixtures("running")
def test_without_quota_destroy_warns_that_sites_may_still_be_stopping(
    api: ApiServer, compute: Compute, later: Later
) -> None:
    later.after(2, lambda: withdraw(api))
    result = compute("destroy", "shop", "-y", "--wait")
    warning = "Its sites may still be stopping: no quota claim shows when its instances have stopped."
    assert (result.code, result.lines[-2:]) == (0, [GONE, warning])


def test_a_workload_that_never_ran_is_gone_at_once(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload()
    assert compute("destroy", "shop", "-y", "--wait").lines[-1] == GONE
