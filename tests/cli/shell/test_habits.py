"""What users of kubectl type by habit works, or leads to the command that does it here."""

import json
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from tests.cli.conftest import Compute, FakeClock, World
from tests.cli.server import ApiServer


@pytest.fixture
def offline(clock: FakeClock) -> Compute:
    """With an empty environment: errors about words need nothing else."""
    return Compute(clock, {})


@pytest.fixture
def shop(world: World) -> World:
    world.settled()
    World(world.api, "blog").settled(["AMS"], 1)
    world.api.requests.clear()
    return world


@pytest.mark.parametrize(
    "words", [["workloads", "-o=json"], ["-o=json", "workloads"], ["workloads", "-qo=json"], ["wl", "-o=json", "list"]]
)
def test_a_short_flag_takes_its_value_after_an_equals_sign(shop: World, compute: Compute, words: list[str]) -> None:
    result = compute(*words)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["kind"] == "WorkloadList"


@pytest.mark.parametrize("value", ["false", "False", "0", "f"])
def test_a_flag_that_is_switched_off_counts_as_not_given(shop: World, compute: Compute, value: str) -> None:
    plain = compute("workloads")
    for flag in (f"--watch={value}", f"-w={value}"):
        result = compute("workloads", flag)
        assert (result.code, result.out, result.err) == (0, plain.out, plain.err)
    assert compute("workloads", "--watch", f"--watch={value}").out == plain.out


def test_a_flag_with_an_opposite_is_switched_off_to_it(shop: World, compute: Compute) -> None:
    result = compute("rollout", "status", "shop", "--watch=false")
    assert (result.code, result.err) == (0, "")
    assert "Done" in result.out
    assert "Rollout complete" not in result.out


def test_a_flag_that_is_switched_on_by_value_is_on(shop: World, compute: Compute) -> None:
    assert compute("workloads", "--no-headers=true").out == compute("workloads", "--no-headers").out
    assert compute("workloads", "-v=1").err.startswith("GET ")


def test_a_flag_that_is_switched_off_wins_over_the_environment(shop: World, compute: Compute) -> None:
    quiet = {"DATUM_COMPUTE_QUIET": "1"}
    assert "Next steps" not in compute("workloads", "describe", "shop", environ=quiet).out
    assert "Next steps" in compute("workloads", "describe", "shop", "--quiet=false", environ=quiet).out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["workloads", "--watch=maybe"], '--watch: "maybe" is neither true nor false'),
        (["workloads", "-v=loud"], '--verbose: "loud" is not a number; use 0 to 9'),
    ],
)
def test_a_switch_takes_true_or_false(offline: Compute, words: list[str], error: str) -> None:
    result = offline(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0] == f"Error: {error}"


@pytest.mark.parametrize(
    "name",
    [
        "workload/shop",
        "workloads/shop",
        "wl/shop",
        "workload.compute.datumapis.com/shop",
        "workloads.compute.datumapis.com/shop",
    ],
)
def test_a_name_may_carry_its_type(shop: World, compute: Compute, name: str) -> None:
    result = compute("status", name)
    assert (result.code, result.err) == (0, "")
    assert result.out == compute("status", "shop").out


def test_names_printed_by_a_list_are_accepted_as_arguments(shop: World, compute: Compute) -> None:
    printed = compute("instances", "-o", "name").lines
    for name in printed:
        assert compute("instances", "describe", name).code == 0
    assert len(printed) == 5


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["status", "instance/shop"], '"instance/shop" is not a workload: write shop or workload/shop'),
        (["status", "deployment/shop"], '"deployment/shop" is not a workload: write shop or workload/shop'),
        (["instances", "describe", "workload/x"], '"workload/x" is not an instance: write x or instance/x'),
    ],
)
def test_a_name_with_another_type_is_an_error(offline: Compute, words: list[str], error: str) -> None:
    result = offline(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0] == f"Error: {error}"


def test_a_list_can_be_limited_to_names(shop: World, compute: Compute) -> None:
    lines = compute("workloads", "shop").lines
    assert [line.split()[0] for line in lines[:2]] == ["NAME", "shop"]
    assert "blog" not in "".join(lines)
    assert [line.split()[0] for line in compute("workloads", "list", "shop", "blog").lines[1:3]] == ["blog", "shop"]
    name = "shop-default-ams-0"
    assert [line.split()[0] for line in compute("instances", name).lines[:2]] == ["NAME", name]


def test_one_name_as_json_is_the_object_and_several_are_a_list(shop: World, compute: Compute) -> None:
    one = json.loads(compute("workloads", "shop", "-o", "json").out)
    assert (one["kind"], one["metadata"]["name"]) == ("Workload", "shop")
    several = json.loads(compute("workloads", "shop", "blog", "-o", "json").out)
    assert [item["metadata"]["name"] for item in several["items"]] == ["blog", "shop"]
    instance = json.loads(compute("instances", "shop-default-ams-0", "-o", "json").out)
    assert (instance["kind"], instance["metadata"]["name"]) == ("Instance", "shop-default-ams-0")


def test_a_missing_name_is_an_error_and_not_an_empty_list(shop: World, compute: Compute) -> None:
    result = compute("workloads", "shop", "nothere")
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines()[0] == 'Error: workload "nothere" not found in project demo'


@pytest.mark.parametrize(
    ("words", "like"),
    [
        (["help"], ["--help"]),
        (["help", "status"], ["status", "--help"]),
        (["help", "rollout", "undo"], ["rollout", "undo", "--help"]),
        (["help", "wl"], ["wl", "--help"]),
    ],
)
def test_help_is_a_word_too(offline: Compute, words: list[str], like: list[str]) -> None:
    result = offline(*words)
    assert (result.code, result.err) == (0, "")
    assert result.out == offline(*like).out


def test_help_for_an_unknown_command_is_an_error(offline: Compute) -> None:
    result = offline("help", "zebra")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith('Error: unknown command "zebra" for "compute"')


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["get", "workloads"], "workloads"),
        (["get", "wl", "-o=wide"], "workloads -o=wide"),
        (["get", "workload", "shop"], "workloads shop"),
        (["get", "workload/shop", "-o", "json"], "workloads shop -o json"),
        (["get", "pods"], "instances"),
        (["get", "-w", "instances"], "instances -w"),
        (["get"], "workloads"),
        (["get", "nodes"], "cities"),
        (["describe", "pod", "shop-default-ams-0"], "instances describe shop-default-ams-0"),
        (["describe", "instance/x"], "instances describe x"),
        (["describe", "workload", "shop"], "workloads describe shop"),
        (["describe", "shop"], "workloads describe shop"),
        (["apply", "-f", "shop.yaml"], "deploy -f shop.yaml"),
        (["create", "-f", "shop.yaml"], "deploy -f shop.yaml"),
        (["diff", "-f", "shop.yaml"], "deploy -f shop.yaml --dry-run --diff"),
        (["run", "shop", "--image=registry.example/shop:1"], "deploy shop --image=registry.example/shop:1"),
    ],
)
def test_verbs_of_kubectl_lead_to_the_command(offline: Compute, words: list[str], meant: str) -> None:
    result = offline(*words)
    assert (result.code, result.out) == (2, "")
    expected = f'Error: unknown command "{words[0]}" for "compute"\n\nDid you mean: compute {meant}\n'
    assert result.err == expected


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["delete", "workload", "shop", "-y"], "Did you mean: compute destroy shop -y"),
        (["rollout", "undo", "workload", "shop"], "Did you mean: compute rollout undo shop"),
        (["scale", "shop", "--replicas=3"], "Did you mean: --min"),
        (["deploy", "--filename=shop.yaml"], "Did you mean: --file"),
        (["cities", "DFW"], "Did you mean: compute cities describe DFW"),
    ],
)
def test_other_habits_of_kubectl_get_a_suggestion(offline: Compute, words: list[str], advice: str) -> None:
    result = offline(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1] == advice


@pytest.mark.parametrize("word", ["clear", "login", "zebra", "exit", "top", "edit", "pwd"])
def test_nothing_is_suggested_that_is_not_close(offline: Compute, word: str) -> None:
    result = offline(word)
    assert result.code == 2
    assert result.err == f'Error: unknown command "{word}" for "compute"\n\ncompute --help\n'


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["scale", "api", "--min=abc"], '--min: "abc" is not a number; use 1 or more'),
        (["scale", "api", "--min=1.5"], '--min: "1.5" is not a number; use 1 or more'),
        (
            ["scale", "api", "--min=99999999999999999999"],
            '--min: "99999999999999999999" is too large; use at most 2147483647',
        ),
        (["deploy", "api", "--min=3000000000"], '--min: "3000000000" is too large; use at most 2147483647'),
        (["scale", "api"], "--min is required"),
        (
            ["rollout", "history", "api", "--limit=99999999999999999999"],
            '--limit: "99999999999999999999" is too large; use at most 2147483647',
        ),
        (["deploy", "api", "--image"], "--image needs a value: --image=IMAGE"),
        (["deploy", "api", "--image", "--city=DFW"], "--image needs a value: --image=IMAGE"),
        (["deploy", "api", "--city", "-y"], "--city needs a value: --city=CITY,..."),
        (["workloads", "-o"], "-o needs a value: -o FORMAT"),
        (["--project"], "--project needs a value: --project=NAME"),
    ],
)
def test_invalid_numbers_and_values_are_named(offline: Compute, words: list[str], error: str) -> None:
    result = offline(*words)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0] == f"Error: {error}"


BAD_IMAGES = ["shop:", "registry.example/Shop:1", "two words", "http://registry.example/shop", "shop:a/b", "-shop"]


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_a_bad_image_in_a_flag_is_refused_before_any_question(offline: Compute, image: str) -> None:
    result = offline("deploy", "shop", f"--image={image}", "--city=DFW")
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0] == (
        f'Error: --image: "{image}" is not an image; '
        "write it like registry.example/shop:2.1, with the name in lower case"
    )


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_a_bad_image_is_refused_in_a_manifest_alike(offline: Compute, tmp_path: Path, image: str) -> None:
    result = offline("deploy", "-f", str(_manifest(tmp_path, "shop", image)))
    assert (result.code, result.out) == (1, "")
    assert f'spec.template.spec.runtime.sandbox.containers[0].image: "{image}" is not an image; ' in result.err


@pytest.mark.parametrize(
    "image",
    [
        "shop",
        "library/shop:2.1",
        "localhost:5000/a/b_c/d-e.f:V1",
        f"registry.example/shop@sha256:{'0' * 64}",
        f"registry.example:443/team/shop:1@sha256:{'a' * 64}",
    ],
)
def test_an_image_may_be_written_in_every_usual_way(api: ApiServer, compute: Compute, image: str) -> None:
    result = compute("deploy", "shop", f"--image={image}", "--city=DFW", "--no-wait")
    assert (result.code, result.err) == (0, "")
    assert image in bytes(api.get(WORKLOAD, "shop").spec_json).decode()


@pytest.mark.parametrize(("name", "quoted"), [("123", "123"), ("true", "true"), ("1.50", "1.5")])
def test_a_name_in_a_manifest_that_is_not_text_is_an_error(
    offline: Compute, tmp_path: Path, name: str, quoted: str
) -> None:
    path = _manifest(tmp_path, name, "shop")
    result = offline("deploy", "-f", str(path))
    assert (result.code, result.out) == (1, "")
    assert result.err == f"Error: {path}: metadata.name {quoted} must be text; put it in quotes\n"


def _manifest(folder: Path, name: str, image: str) -> Path:
    path = folder / "workload.yaml"
    path.write_text(
        f"""apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata: {{name: {name}}}
spec:
  template:
    spec:
      runtime:
        resources: {{instanceType: datumcloud/d1-standard-2}}
        sandbox: {{containers: [{{name: app, image: "{image}"}}]}}
      networkInterfaces: [{{network: {{name: default}}}}]
  placements: [{{name: default, cityCodes: [DFW], scaleSettings: {{minReplicas: 1}}}}]
"""
    )
    return path
