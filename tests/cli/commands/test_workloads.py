import json

import pytest
import yaml

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World, condition, placement, template
from tests.cli.server import ApiServer


def several(api: ApiServer) -> None:
    """One workload in each state."""
    World(api, "web").settled()
    api_ = World(api, "api")
    api_.workload(("AMS",))
    api_.observe()
    api_.deployment("AMS")
    api_.report("AMS", 1, 1)
    batch = World(api, "batch")
    batch.workload(("SIN",), 1)
    batch.observe(condition("Available", "False", "QuotaNotGranted"))
    World(api, "fresh").workload(("DFW",), 1)


def test_the_list_is_sorted_and_counted(api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    several(api)
    clock.turn(3 * 86400)
    result = compute("workloads")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "NAME    HEALTH        READY   UP-TO-DATE   PLACEMENTS   IMAGE      AGE\n"
        "api     Degraded      1/2     1/2          default      shop:2.1   3d\n"
        "batch   Unavailable   0/1     0/1          default      shop:2.1   3d\n"
        "fresh   Unknown       0/1     —            default      shop:2.1   3d\n"
        "web     Available     4/4     4/4          default      shop:2.1   3d\n"
        "\n"
        "4 workloads — 1 Available, 1 Degraded, 1 Unavailable, 1 Unknown\n"
    )


@pytest.mark.parametrize(
    "words", [["workloads"], ["workloads", "list"], ["workloads", "ls"], ["wl"], ["workload", "list"]]
)
def test_all_spellings_work(api: ApiServer, compute: Compute, words: list[str]) -> None:
    several(api)
    assert compute(*words, "-o", "name").out == "workload/api\nworkload/batch\nworkload/fresh\nworkload/web\n"


def test_flags_may_stand_before_the_verb(api: ApiServer, compute: Compute) -> None:
    several(api)
    assert compute("workloads", "--city", "SIN", "-o", "name", "list").out == "workload/batch\n"
    assert compute("-o", "name", "workloads").out.startswith("workload/api\n")


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--health=available"], ["web"]),
        (["--health=degraded"], ["api"]),
        (["--health=unavailable"], ["batch"]),
        (["--health=unknown"], ["fresh"]),
        (["--health=progressing"], ["api"]),
        (["--city=ams"], ["api", "web"]),
        (["--city=AMS", "--health=available"], ["web"]),
    ],
)
def test_filters(api: ApiServer, compute: Compute, flags: list[str], names: list[str]) -> None:
    several(api)
    assert compute("workloads", *flags, "-o", "name").out.splitlines() == [f"workload/{name}" for name in names]
    listed = json.loads(compute("workloads", *flags, "-o", "json").out)
    assert [item["metadata"]["name"] for item in listed["items"]] == names
    assert f"{len(names)} workload" in compute("workloads", *flags).out


def test_json_is_the_kubernetes_list(api: ApiServer, compute: Compute) -> None:
    several(api)
    listed = json.loads(compute("workloads", "-o", "json").out)
    assert (listed["apiVersion"], listed["kind"]) == ("compute.datumapis.com/v1alpha", "WorkloadList")
    assert listed["items"][3]["status"]["conditions"][0]["reason"] == "AvailablePlacementFound"
    assert yaml.safe_load(compute("workloads", "-o", "yaml").out) == listed


def test_an_empty_project(api: ApiServer, compute: Compute) -> None:
    result = compute("workloads")
    assert result.out == (
        "No workloads found in project demo.\n\nGet started:  compute deploy hello --image=IMAGE --city=CITY\n"
    )
    assert compute("workloads", "-q").out == "No workloads found in project demo.\n"
    assert json.loads(compute("workloads", "-o", "json").out)["items"] == []
    assert compute("workloads", "-o", "name").out == ""


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--health=degraded", "No workloads in project demo match health=degraded."),
        ("--city=SIN", "No workloads in project demo have a placement in city SIN."),
    ],
)
def test_nothing_left_after_a_filter(api: ApiServer, compute: Compute, flag: str, text: str) -> None:
    assert compute("workloads", flag).out == f"{text}\n"


def test_wide_adds_the_instance_type(api: ApiServer, compute: Compute) -> None:
    World(api, "web").settled()
    assert compute("workloads", "-o", "wide").lines[:2] == [
        "NAME   HEALTH      READY   UP-TO-DATE   PLACEMENTS   IMAGE      AGE   INSTANCE TYPE",
        "web    Available   4/4     4/4          default      shop:2.1   0s    datumcloud/d1-standard-2",
    ]


def test_without_titles(api: ApiServer, compute: Compute) -> None:
    World(api, "web").settled()
    assert compute("workloads", "--no-headers").out == "web   Available   4/4   4/4   default   shop:2.1   0s\n"


def test_at_80_columns_only_the_image_gives_way(api: ApiServer, compute: Compute) -> None:
    image = "registry.example:5000/a/team/with/a/long/name/service@sha256:0123456789abcdef"
    World(api, "web").workload(spec={"template": template(image)})
    result = compute("workloads", tty=True, columns=80, environ={"NO_COLOR": "1"})
    assert result.lines[:2] == [
        "NAME   HEALTH    READY   UP-TO-DATE   PLACEMENTS   IMAGE                     AGE",
        "web    Unknown   0/4     —            default      a/team/with…56789abcdef   0s",
    ]
    assert len(result.lines[0]) == 80
    assert image.partition("/")[2] in compute("workloads").out


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("registry.example/team/shop:1", "team/shop:1"),
        ("localhost:5000/shop", "shop"),
        ("team/shop:1", "team/shop:1"),
        ("shop", "shop"),
    ],
)
def test_the_registry_is_left_out(api: ApiServer, compute: Compute, image: str, expected: str) -> None:
    World(api, "web").workload(spec={"template": template(image)})
    assert compute("workloads").lines[1].split()[5] == expected


def test_describe(api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    world = World(api, "shop")
    env = [
        {"name": "LOG_LEVEL", "value": "debug"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "vault", "key": "k"}}},
        {"name": "URL", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "k"}}},
    ]
    world.workload(
        spec={
            "template": template(env=env, ports=[{"name": "http", "port": 8080, "protocol": "TCP"}]),
            "placements": [placement("default", ["DFW", "AMS"], 2)],
        }
    )
    world.observe()
    for city in ("AMS", "DFW"):
        world.deployment(city)
    world.report("AMS", 2, 2)
    world.report("DFW", 0, 0, available=condition("Available", "False", "QuotaNotGranted", "no vCPU left"))
    clock.turn(90)
    result = compute("workloads", "describe", "shop")
    assert result.out == (
        "Workload     shop                            project: demo\n"
        "Type         sandbox/datumcloud/d1-standard-2\n"
        "Updated      1m ago\n"
        "Revision     #—\n"
        "\n"
        "Health       Degraded — 2 instances below desired count\n"
        "\n"
        "Placements\n"
        "  default  cities: AMS, DFW  scale: 2..∞\n"
        "    AMS  ready: 2/2\n"
        "    DFW  ready: 0/2  Blocked — no vCPU left\n"
        "\n"
        "Container\n"
        "  Image        registry.example/shop:2.1\n"
        "  Ports        8080/TCP\n"
        "  Env          LOG_LEVEL=debug\n"
        "               KEY from secret vault\n"
        "               URL from configmap settings\n"
        "\n"
        "Conditions\n"
        "  TYPE        STATUS   REASON                    AGE   MESSAGE\n"
        "  Available   True     AvailablePlacementFound   1m    —\n"
        "\n"
        "Next steps:\n"
        "  Status:      compute status shop\n"
        "  Instances:   compute instances --workload=shop\n"
    )


def test_describe_suggests_undo_if_possible(api: ApiServer, compute: Compute) -> None:
    compute("deploy", "shop", "--image=shop:1", "--city=DFW", "--no-wait")
    assert "undo" not in compute("workloads", "describe", "shop").out
    compute("deploy", "shop", "--image=shop:2", "--no-wait")
    assert compute("workloads", "describe", "shop").lines[-4:] == [
        "Next steps:",
        "  Status:      compute status shop",
        "  Instances:   compute instances --workload=shop",
        "  Roll back:   compute rollout undo shop",
    ]


def test_describe_in_other_formats(api: ApiServer, compute: Compute) -> None:
    World(api, "shop").settled()
    assert json.loads(compute("workloads", "get", "shop", "-o", "json").out)["kind"] == "Workload"
    assert yaml.safe_load(compute("wl", "describe", "shop", "-o", "yaml").out)["metadata"]["name"] == "shop"
    assert compute("workloads", "describe", "shop", "-o", "name").out == "workload/shop\n"


def test_a_workload_of_another_writer_with_fields_we_do_not_know(api: ApiServer, compute: Compute) -> None:
    World(api, "shop").settled()
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {"future": "yes"}}})
    assert json.loads(compute("workloads", "get", "shop", "-o", "json").out)["metadata"]["annotations"] == {
        "future": "yes"
    }


def test_a_workload_that_is_being_deleted_is_not_called_available(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.settled()
    api.patch(WORKLOAD, "shop", {"metadata": {"finalizers": ["compute.datumapis.com/workload-controller"]}})
    api.delete(WORKLOAD, "shop")
    listed = compute("workloads")
    assert listed.lines[1].split()[:2] == ["shop", "Deleting"]
    assert listed.lines[-1] == "1 workload — 0 Available, 0 Degraded, 0 Unavailable, 0 Unknown, 1 Deleting"
    assert compute("workloads", "--health=deleting", "-o", "name").out == "workload/shop\n"
    assert compute("workloads", "--health=available", "-o", "name").out == ""
    assert "Health       Deleting — waiting for AMS, DFW" in compute("status", "shop").lines
    status = json.loads(compute("status", "shop", "-o", "json").out)
    assert (status["healthState"], status["deleting"]) == ("Deleting", True)
    assert "Health       Deleting — waiting for AMS, DFW" in compute("workloads", "describe", "shop").lines
    api.delete(WORKLOAD_DEPLOYMENT, "shop-default-ams")
    left = compute("status", "shop").out
    assert "Health       Deleting — waiting for DFW\n" in left
    rows = [line.split() for line in left.partition("CITY")[2].splitlines()[1:]]
    assert rows[0] == ["default", "DFW", "2/2", "2", "datumcloud/d1-standard-2", "[removing]"]
    assert left.splitlines()[-1] == "  shop is being deleted: it waits for DFW, for 0s. Nothing to do."


def test_a_deletion_that_waits_for_a_finalizer_alone_names_it(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(finalizers=["example.com/backup"])
    world.observe()
    api.delete(WORKLOAD, "shop")
    assert compute("status", "shop").lines[-5:] == [
        "Health       Deleting — waiting for finalizer example.com/backup",
        "",
        "  No city has a deployment of it any more.",
        "",
        "  shop is being deleted: it waits for example.com/backup, for 0s. You can act.",
    ]
    assert compute("rollout", "status", "shop").err.splitlines()[0] == (
        'Error: workload "shop" is being deleted: waiting for finalizer example.com/backup'
    )


def test_a_version_that_waits_for_a_resume_is_not_called_up_to_date(
    api: ApiServer, compute: Compute, world: World
) -> None:
    """The deployments keep their old template, and all of their instances are on that."""
    world.settled()
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    api.patch(WORKLOAD, "shop", {"spec": {"template": template("registry.example/shop:2.2")}})
    world.observe()
    api.patch(WORKLOAD, "shop", {"status": {"updatedReplicas": 0, "currentReplicas": 0}}, "status")
    listed = compute("workloads")
    assert listed.lines[1].split()[:4] == ["shop", "Paused", "4/4", "0/4"]
    assert listed.lines[-1] == "1 workload — 0 Available, 0 Degraded, 0 Unavailable, 0 Unknown, 1 Paused"
    assert compute("workloads", "--health=paused", "-o", "name").out == "workload/shop\n"
    assert "Health       Paused — 0 of 4 instances on the newest version" in compute("status", "shop").lines
    status = json.loads(compute("status", "shop", "-o", "json").out)
    assert (status["healthState"], status["paused"]) == ("Paused", True)
    assert [(city["ready"], city["updated"], city["desired"]) for city in status["cities"]] == [(2, 0, 2)] * 2
