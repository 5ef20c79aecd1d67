import json

import pytest

from datum_compute.api.instance import INSTANCE
from datum_compute.api.labels import CITY_CODE, DEPLOYMENT_NAME, PLACEMENT_NAME, WORKLOAD_NAME
from tests.cli.conftest import Compute, FakeClock, World, condition, entitle
from tests.cli.log_store import LogStore
from tests.cli.server import ApiServer

CRASHING = condition("Programmed", "Unknown", "InstanceCrashing", "exit code 1")
NO_QUOTA = condition("QuotaGranted", "False", "QuotaExceeded", "Requested 1 instance, 0 available.")


def several(api: ApiServer) -> World:
    world = World(api)
    world.workload()
    for city in ("AMS", "DFW"):
        world.deployment(city)
    world.instance("DFW", 1, NO_QUOTA)
    world.instance("DFW", 0, CRASHING)
    world.instance("AMS", 0, address="198.51.100.7")
    other = World(api, "job")
    other.workload(("SIN",))
    other.instance("SIN", 0, condition("Ready", "False", "Odd", "Network"))
    return world


def test_the_list(api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    several(api)
    clock.turn(300)
    result = compute("instances")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "NAME                 WORKLOAD   CITY   EXTERNAL IP    INTERNAL IP   TYPE      AGE   STATUS\n"
        "job-default-sin-0    job        SIN    —              —             sandbox   5m    Pending (Odd)\n"
        "shop-default-ams-0   shop       AMS    198.51.100.7   10.0.0.1      sandbox   5m    Available\n"
        "shop-default-dfw-0   shop       DFW    —              —             sandbox   5m    Failed (crashing)\n"
        "shop-default-dfw-1   shop       DFW    —              —             sandbox   5m    Pending (quota exceeded)\n"
        "\n"
        "4 instances — 1 Available, 2 Pending, 1 Failed\n"
    )


@pytest.mark.parametrize("words", [["instances"], ["instances", "list"], ["instances", "ls"], ["ps"], ["instance"]])
def test_all_spellings_work(api: ApiServer, compute: Compute, words: list[str]) -> None:
    several(api)
    assert len(compute(*words, "-o", "name").lines) == 4


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--workload=job"], ["job-default-sin-0"]),
        (["--city=dfw"], ["shop-default-dfw-0", "shop-default-dfw-1"]),
        (["--status=available"], ["shop-default-ams-0"]),
        (["--status=failed"], ["shop-default-dfw-0"]),
        (["--status=pending"], ["job-default-sin-0", "shop-default-dfw-1"]),
        (["--workload=shop", "--city=DFW", "--status=pending"], ["shop-default-dfw-1"]),
    ],
)
def test_filters_apply_to_every_format(api: ApiServer, compute: Compute, flags: list[str], names: list[str]) -> None:
    several(api)
    assert compute("instances", *flags, "-o", "name").lines == [f"instance/{name}" for name in names]
    listed = json.loads(compute("instances", *flags, "-o", "json").out)
    assert listed["kind"] == "InstanceList"
    assert [item["metadata"]["name"] for item in listed["items"]] == names


def test_with_all_labels_deployments_are_not_read(api: ApiServer, compute: Compute) -> None:
    several(api)
    compute("instances")
    assert not any("workloaddeployments" in seen.path for seen in api.requests)


def test_without_labels_the_owner_comes_from_the_deployment(api: ApiServer, compute: Compute) -> None:
    world = World(api)
    world.workload()
    world.deployment("DFW")
    bare = dict.fromkeys((WORKLOAD_NAME, PLACEMENT_NAME, CITY_CODE, DEPLOYMENT_NAME), "")
    world.instance("DFW", 0, **bare)
    world.instance("SIN", 7, **bare)
    rows = [line.split()[:3] for line in compute("instances", "--no-headers", "-q").lines]
    assert rows == [["shop-default-sin-7", "orphaned", "unknown"], ["shop-default-dfw-0", "shop", "DFW"]]


def test_without_titles_there_is_no_footer_either(api: ApiServer, compute: Compute) -> None:
    several(api)
    result = compute("instances", "--no-headers")
    assert [line.partition(" ")[0] for line in result.lines] == [
        "job-default-sin-0", "shop-default-ams-0", "shop-default-dfw-0", "shop-default-dfw-1"
    ]  # fmt: skip


def test_an_instance_that_is_being_deleted_is_terminating(api: ApiServer, compute: Compute) -> None:
    name = several(api).instance("AMS", 1)
    api.patch(INSTANCE, name, {"metadata": {"finalizers": ["example.com/provider"]}})
    api.delete(INSTANCE, name)
    result = compute("instances", name)
    assert result.lines[1].split()[-1] == "Terminating"
    assert result.lines[-1] == "1 instance — 0 Available, 1 Pending, 0 Failed"
    assert "Status         Terminating" in compute("instances", "describe", name).lines


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "No instances found in project demo."),
        (["--city=sin"], "No instances found in project demo with city=sin."),
        (["--city=SIN", "--status=failed"], "No instances found in project demo with city=SIN, status=failed."),
    ],
)
def test_none(api: ApiServer, compute: Compute, flags: list[str], text: str) -> None:
    assert compute("instances", *flags).out == f"{text}\n"


@pytest.mark.parametrize(
    ("listing", "sentence"),
    [
        ("instances", "No instances found in project demo with city=XYZ."),
        ("workloads", "No workloads in project demo have a placement in city XYZ."),
    ],
)
def test_an_empty_list_says_that_its_city_is_not_offered(
    api: ApiServer, compute: Compute, listing: str, sentence: str
) -> None:
    result = compute(listing, "--city=XYZ")
    assert (result.code, result.err) == (0, "")
    assert result.lines == [
        sentence,
        "City \"XYZ\" is not offered to project demo. Run 'compute cities' to list those that are.",
    ]
    assert compute(listing, "--city=XYZ", "--quiet").lines == [sentence]


def test_without_a_list_of_cities_nothing_is_said_about_them(bare_api: ApiServer, compute: Compute) -> None:
    entitle(bare_api)
    assert compute("instances", "--city=XYZ").lines == ["No instances found in project demo with city=XYZ."]


def test_wide_adds_the_instance_type(api: ApiServer, compute: Compute) -> None:
    several(api)
    assert compute("instances", "-o", "wide").lines[0].endswith("STATUS                     INSTANCE TYPE")


def test_colours(api: ApiServer, compute: Compute) -> None:
    several(api)
    out = compute("instances", "--color=always").out
    assert "\x1b[32mAvailable\x1b[0m" in out
    assert "\x1b[31mFailed (crashing)\x1b[0m" in out
    assert "\x1b[33mPending (quota exceeded)\x1b[0m" in out


def test_describe_one_that_waits_for_quota(api: ApiServer, compute: Compute, clock: FakeClock) -> None:
    several(api)
    clock.turn(60)
    result = compute("instances", "describe", "shop-default-dfw-1")
    assert result.out == (
        "Instance       shop-default-dfw-1\n"
        "Workload       shop\n"
        "Placement      default\n"
        "City           DFW\n"
        "Age            1m\n"
        "Status         Not available — quota exceeded\n"
        "               Requested 1 instance, 0 available.\n"
        "\n"
        "What this means    The project has no quota left for the instance.\n"
        "What to do         Run fewer or smaller instances, or ask for more quota.\n"
        "In this state for  1m\n"
        "\n"
        "Runtime\n"
        "  Image        registry.example/shop:2.1\n"
        "  Type         datumcloud/d1-standard-2\n"
        "\n"
        "Network        Waiting for addresses (not yet scheduled)\n"
        "\n"
        "Conditions\n"
        "  TYPE           STATUS   REASON          AGE   MESSAGE\n"
        "  QuotaGranted   False    QuotaExceeded   1m    Requested 1 instance, 0 available.\n"
        "\n"
        "Next steps:\n"
        "  Check quota:       compute quota\n"
    )


@pytest.mark.parametrize("served", [True, False])
def test_the_logs_of_one_that_crashes_are_named_where_they_are_served(
    api: ApiServer, compute: Compute, served: bool
) -> None:
    api.logs = LogStore() if served else None
    world = World(api)
    world.workload(("DFW",))
    world.instance("DFW", 0, CRASHING)
    lines = compute("instances", "describe", "shop-default-dfw-0").lines
    assert ("  Read its logs:     compute logs shop --instance=default-dfw-0" in lines) is served


def test_describe_one_that_runs(api: ApiServer, compute: Compute) -> None:
    several(api)
    lines = compute("instances", "get", "shop-default-ams-0").lines
    assert "Status         Available" in lines
    assert "Network        External: 198.51.100.7  Internal: 10.0.0.1" in lines
    assert "Next steps:" not in lines


def test_a_reason_that_only_points_is_followed_to_the_one_it_points_at(api: ApiServer, compute: Compute) -> None:
    world = World(api)
    world.workload(("DFW",))
    gated = condition("Ready", "False", "SchedulingGatesPresent", "Scheduling gates present: Quota")
    world.instance("DFW", 0, gated, condition("QuotaGranted", "Unknown", "QuotaNoBudget", "no bucket"))
    lines = compute("instances", "describe", "shop-default-dfw-0").lines
    assert "What this means    The quota claim is waiting because the project has no allowance for it." in lines
    assert "What to do         this is Datum's to fix; no change to the workload helps" in lines


def test_an_age_that_cannot_be_true_is_not_shown(api: ApiServer, compute: Compute) -> None:
    world = World(api)
    world.workload(("DFW",))
    fresh = condition("Ready", "Unknown", "Pending", "Waiting for controller") | {
        "lastTransitionTime": "1970-01-01T00:00:00Z"
    }
    world.instance("DFW", 0, fresh)
    assert (
        "  Ready   Unknown   Pending   —     Waiting for controller" in compute("ps", "get", "shop-default-dfw-0").lines
    )


def test_messages_wrap_at_80_columns(api: ApiServer, compute: Compute) -> None:
    world = World(api)
    world.workload(("DFW",))
    message = "the registry answered that the image does not exist, or that it may not be pulled with these credentials"
    world.instance("DFW", 0, condition("Ready", "Unknown", "ImageUnavailable", message))
    result = compute("instances", "describe", "shop-default-dfw-0", tty=True, columns=80, environ={"NO_COLOR": "1"})
    table = result.lines[result.lines.index("Conditions") + 1 :]
    assert max(map(len, table)) <= 80
    assert " ".join(" ".join(line[42:].split()) for line in table[1:]).endswith("with these credentials")


def test_describe_in_other_formats(api: ApiServer, compute: Compute) -> None:
    several(api)
    assert json.loads(compute("instances", "describe", "shop-default-ams-0", "-o", "json").out)["kind"] == "Instance"
    assert compute("ps", "get", "shop-default-ams-0", "-o", "name").out == "instance/shop-default-ams-0\n"
