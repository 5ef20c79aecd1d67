"""`deploy -f`, `--diff`, `--exit-code` and the saved manifest."""

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from datum_compute.api.networking import NETWORK
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.history import name_of
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import Json, as_dict
from tests.cli.conftest import IMAGE, Compute, World, placement, template
from tests.cli.server import ApiServer

NEW = ("deploy", "shop", f"--image={IMAGE}", "--city=DFW", "--no-wait")


def manifest(image: str = IMAGE, **metadata: Any) -> Json:
    return {
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "Workload",
        "metadata": {"name": "shop", **metadata},
        "spec": {"template": template(image), "placements": [placement("default", ["DFW"], 2)]},
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Json], Path]:
    def write(body: Json) -> Path:
        path = tmp_path / "shop.yaml"
        path.write_text(yaml.safe_dump(body))
        return path

    return write


Write = Callable[[Json], Path]


def test_a_new_workload(api: ApiServer, compute: Compute, write: Write) -> None:
    write(manifest(labels={"team": "red"}, namespace="elsewhere"))
    result = compute("deploy", "-f", "shop.yaml", "--no-wait")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        '  Placement "default": cities=[DFW], min=2\n'
        "  workload/shop created\n"
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    found = api.get(WORKLOAD, "shop")
    assert found.metadata.labels == {"team": "red"}
    assert json.loads(api.get(CONFIG_MAP, name_of("shop")).data["1"])["changes"] == "initial deploy"


def test_a_manifest_from_stdin_asks_no_questions(api: ApiServer, compute: Compute) -> None:
    assert compute("deploy", "-f", "-", "--no-wait", stdin=json.dumps(manifest())).code == 0
    assert api.all(WORKLOAD) != []


def test_an_update_replaces_the_spec_and_keeps_other_annotations(
    api: ApiServer, compute: Compute, world: World, write: Write
) -> None:
    world.workload(labels={"owner": "me"}, annotations={"note": "x"})
    write(manifest("shop:9", labels={"team": "red"}))
    result = compute("deploy", "shop", "-f", "shop.yaml", "--no-wait")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        'Changes to workload "shop":\n'
        f"  image: {IMAGE} → shop:9\n"
        '  placement "default" cities: AMS, DFW → DFW\n'
        "  1 other field(s) changed\n"
        "  workload/shop updated\n"
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    after = api.get(WORKLOAD, "shop")
    assert after.metadata.labels == {"owner": "me", "team": "red"}
    assert after.metadata.annotations == {"note": "x"}
    changes = json.loads(api.get(CONFIG_MAP, name_of("shop")).data["2"])["changes"]
    assert changes.startswith(f"image: {IMAGE} → shop:9; placement")


def test_defaults_of_the_server_are_not_a_change(api: ApiServer, compute: Compute, write: Write) -> None:
    """A port without its protocol and a placement without its policy come back from the server with both."""
    body = manifest()
    body["spec"]["template"] = template(ports=[{"name": "http", "port": 80}])
    write(body)
    compute("deploy", "-f", "shop.yaml", "--no-wait")
    generation = api.get(WORKLOAD, "shop").metadata.generation
    api.requests.clear()
    result = compute("deploy", "-f", "shop.yaml", "--no-wait")
    assert (result.code, result.out) == (0, "No changes detected.\n")
    assert all(seen.query["dryRun"] == "All" for seen in api.writes())
    assert api.get(WORKLOAD, "shop").metadata.generation == generation
    assert list(api.get(CONFIG_MAP, name_of("shop")).data) == ["1"]


def test_another_name_beside_the_file_is_a_contradiction(api: ApiServer, compute: Compute, write: Write) -> None:
    write(manifest())
    result = compute("deploy", "other", "-f", "shop.yaml")
    assert result.code == 2
    assert result.err == (
        'Error: the manifest is of workload "shop", not "other": leave the name out, or change it there\n'
    )
    assert api.requests == []


@pytest.mark.parametrize(
    "flag", ["--image=x", "--city=DFW", "--min=2", "--port=80", "--instance-type=x", "--env=A=b", "--port=0"]
)
def test_change_flags_belong_into_the_manifest(api: ApiServer, compute: Compute, write: Write, flag: str) -> None:
    write(manifest())
    result = compute("deploy", "-f", "shop.yaml", flag)
    name = flag.partition("=")[0]
    assert (result.code, result.err) == (
        2, f"Error: {name} cannot be combined with -f: set it in the manifest instead\n",
    )  # fmt: skip
    assert api.requests == []


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--image="], "--image is empty; leave it out to keep what is there"),
        (["--instance-type= "], "--instance-type is empty; leave it out to keep what is there"),
        (["--exit-code"], "--exit-code needs --dry-run"),
        (["--detach", "--wait"], "--detach cannot be combined with --wait"),
        (["--save", "--no-save"], "--save cannot be combined with --no-save"),
        (["--save=x", "--dry-run"], "--save cannot be combined with --dry-run: there is nothing to save"),
        (["--detach", "--timeout=5m"], "--timeout cannot be combined with --detach: there is no wait"),
        (["--no-wait", "--fail-fast"], "--fail-fast cannot be combined with --no-wait: there is no wait"),
    ],
)
def test_flags_that_contradict_each_other(api: ApiServer, compute: Compute, flags: list[str], error: str) -> None:
    result = compute("deploy", "shop", "--image=x", "--city=DFW", *flags)
    assert (result.code, result.err) == (2, f"Error: {error}\n")
    assert api.requests == []


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "shop.yaml cannot be read: no such file or directory"),
        (b"\xff\xfe", "shop.yaml: this is not UTF-8 text"),
        (b"kind: Pod", "manifest must contain exactly one Workload"),
    ],
)
def test_an_unusable_file_is_reported_before_any_call(
    api: ApiServer, compute: Compute, tmp_path: Path, content: bytes | None, error: str
) -> None:
    if content is not None:
        (tmp_path / "shop.yaml").write_bytes(content)
    result = compute("deploy", "-f", "shop.yaml")
    assert (result.code, result.out, result.err) == (1, "", f"Error: {error}\n")
    assert api.requests == []


def test_every_network_it_names_is_checked(api: ApiServer, compute: Compute, write: Write) -> None:
    body = manifest()
    interfaces = [{"network": {"name": "default"}}, {"network": {"name": "private"}}]
    body["spec"]["template"]["spec"]["networkInterfaces"] = interfaces
    write(body)
    result = compute("deploy", "-f", "shop.yaml")
    assert result.code == 1
    assert 'network "private" not found in project demo — use --yes' in result.err
    assert compute("deploy", "-f", "shop.yaml", "-y", "--no-wait").code == 0
    assert [network.name for network in api.all(NETWORK)] == ["default", "private"]


def test_a_rejection_by_the_server_is_reported_before_the_question(
    api: ApiServer, compute: Compute, world: World, write: Write
) -> None:
    world.workload()
    write(manifest("shop:9"))
    causes = [{"reason": "FieldValueInvalid", "message": "Invalid value", "field": "spec.template.x"}]
    api.answer("PUT", "/workloads", 422, "is invalid", reason="Invalid", details={"causes": causes})
    result = compute("deploy", "-f", "shop.yaml", tty=True, stdin="y\n")
    assert (result.code, result.err) == (
        1, 'Error: workload "shop" was rejected:\n  spec.template.x: Invalid value\n',
    )  # fmt: skip


class TestDiff:
    def test_everything_that_changes_and_no_value(self, api: ApiServer, compute: Compute, world: World) -> None:
        world.workload(("DFW",), spec={"template": template(env=[{"name": "KEY", "value": "s3same"}])})
        flags = ("--image=shop:9", "--env=TOKEN=hush", "--env=KEY=s3new")
        result = compute("deploy", "shop", *flags, "--diff", "--dry-run")
        assert result.code == 0
        found = [text.strip() for text in result.lines if text[:1] in "+-" and text[:3] not in ("+++", "---")]
        compact = {text.replace(" ", "") for text in found}
        assert compact >= {f"-image:{IMAGE}", "+image:shop:9", "+value:(hidden,changed)", "+-name:TOKEN"}
        for secret in ("s3same", "s3new", "hush"):
            assert secret not in result.out + result.err

    def test_it_is_shown_before_the_question(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW, "--diff", tty=True, stdin="n\n", environ={"NO_COLOR": "1"})
        assert result.lines[2:4] == ["--- nothing", "+++ wanted"]
        assert result.lines[-1] == "Aborted."
        assert api.all(WORKLOAD) == []

    def test_with_json_stdout_is_the_workload(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW[:-1], "--diff", "--dry-run", "-o", "json")
        assert json.loads(result.out)["metadata"]["name"] == "shop"
        assert "+++ wanted" in result.err


class TestExitCode:
    def test_exit_code_8_when_something_would_change(self, api: ApiServer, compute: Compute, world: World) -> None:
        assert compute("deploy", "shop", "--image=x", "--city=DFW", "--dry-run", "--exit-code").code == 8
        assert compute("deploy", "shop", "--image=x", "--city=DFW", "--dry-run").code == 0
        world.workload(("DFW",))
        assert compute("deploy", "shop", "--image=shop:9", "--dry-run", "--exit-code").code == 8

    def test_exit_code_0_when_nothing_would_change(
        self, api: ApiServer, compute: Compute, world: World, write: Write
    ) -> None:
        world.workload(("DFW",))
        assert compute("deploy", "shop", f"--image={IMAGE}", "--dry-run", "--exit-code").code == 0
        write(manifest())
        assert compute("deploy", "-f", "shop.yaml", "--dry-run", "--exit-code").code == 0
        assert list(api.all(CONFIG_MAP)) == []

    def test_failures_keep_their_own_exit_codes(self, api: ApiServer, compute: Compute) -> None:
        assert compute("deploy", "shop", "--image=x", "--city=XYZ", "--dry-run", "--exit-code").code == 2


class TestSaving:
    def test_a_script_saves_nothing(self, api: ApiServer, compute: Compute, tmp_path: Path) -> None:
        compute(*NEW)
        assert not (tmp_path / "workload.yaml").exists()

    def test_in_a_terminal_it_is_saved(self, api: ApiServer, compute: Compute, tmp_path: Path) -> None:
        result = compute(*NEW, "-y", tty=True)
        assert result.lines[-2] == "Saved workload.yaml"
        path = tmp_path / "workload.yaml"
        assert path.read_text().splitlines()[:2] == [
            "# Managed by `datumctl compute deploy`.", "# Apply with `compute deploy -f workload.yaml`.",
        ]  # fmt: skip
        saved = yaml.safe_load(path.read_text())
        assert saved["metadata"] == {"name": "shop", "namespace": "default"}
        assert saved["spec"] == as_dict(api.get(WORKLOAD, "shop").spec_json)
        assert "status" not in saved
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert compute("deploy", "-f", "workload.yaml", "--no-wait").out == "No changes detected.\n"

    def test_no_save_saves_nothing(self, api: ApiServer, compute: Compute, tmp_path: Path) -> None:
        assert "Saved" not in compute(*NEW, "-y", "--no-save", tty=True).out
        assert not (tmp_path / "workload.yaml").exists()

    @pytest.mark.parametrize(("flag", "name"), [("--save", "workload.yaml"), ("--save=my.yaml", "my.yaml")])
    def test_the_manifest_is_saved_to_the_given_path(
        self, api: ApiServer, compute: Compute, tmp_path: Path, flag: str, name: str
    ) -> None:
        result = compute("deploy", flag, *NEW[1:])  # the word after it is no path
        assert (result.code, result.err) == (0, "")
        assert f"Saved {name}" in result.lines
        assert (tmp_path / name).exists()

    def test_the_saved_manifest_does_not_name_its_target(
        self, api: ApiServer, compute: Compute, tmp_path: Path
    ) -> None:
        assert compute(*NEW, "--save", "--project=demo").code == 0
        assert "--project" not in (tmp_path / "workload.yaml").read_text()

    def test_an_unchanged_workload_is_saved_only_on_request(
        self, api: ApiServer, compute: Compute, tmp_path: Path, world: World
    ) -> None:
        world.workload(("DFW",))
        same = ("deploy", "shop", f"--image={IMAGE}", "--no-wait")
        assert compute(*same, tty=True).lines[1:] == ["No changes detected."]
        assert compute(*same, "--save").lines[1:] == ["No changes detected.", "Saved workload.yaml"]

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("mine: true\n", "it was not saved by this program"),
            (
                "# Managed by `datumctl compute deploy`.\n"
                + yaml.safe_dump(manifest() | {"metadata": {"name": "web"}}),
                'it contains workload "web"',
            ),
        ],
    )
    def test_a_file_that_is_not_ours_is_not_overwritten(
        self, api: ApiServer, compute: Compute, tmp_path: Path, content: str, reason: str
    ) -> None:
        path = tmp_path / "workload.yaml"
        path.write_text(content)
        result = compute(*NEW, "--save")
        advice = "save it elsewhere with --save=PATH, or pass --no-save"
        warning = f"  warning: workload.yaml was not overwritten: {reason}; {advice}\n"
        assert (result.code, result.err) == (0, warning)
        assert path.read_text() == content

    def test_the_next_deploy_renews_it(self, api: ApiServer, compute: Compute, tmp_path: Path) -> None:
        compute(*NEW, "--save")
        (tmp_path / "workload.yaml").chmod(0o640)
        compute("deploy", "shop", "--image=shop:9", "--no-wait", "--save")
        assert "shop:9" in (tmp_path / "workload.yaml").read_text()
        assert stat.S_IMODE((tmp_path / "workload.yaml").stat().st_mode) == 0o640
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".workload")] == []

    def test_an_unwritable_path_is_a_warning(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW, "--save=no/such/place.yaml")
        assert (result.code, result.err) == (
            0, "  warning: could not save no/such/place.yaml: No such file or directory\n",
        )  # fmt: skip

    def test_deploying_a_manifest_saves_no_other(
        self, api: ApiServer, compute: Compute, tmp_path: Path, write: Write
    ) -> None:
        write(manifest())
        assert compute("deploy", "-f", "shop.yaml", "--save").code == 2
        assert compute("deploy", "-f", "shop.yaml", "-y", "--no-wait", tty=True).code == 0
        assert not (tmp_path / "workload.yaml").exists()


def test_one_manifest_at_a_time(api: ApiServer, compute: Compute, write: Write) -> None:
    path = str(write(manifest()))
    result = compute("deploy", "-f", path, "--file", path, "--no-wait")
    assert (result.code, result.err) == (
        2,
        "Error: -f was given more than once; deploy one manifest after the other\n",
    )
    assert api.requests == []


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 50_000], ids=["YAML", "JSON"])
def test_a_manifest_that_is_nested_without_end_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    """In a process of its own, because the YAML loader would end it."""
    manifest = tmp_path / "deep.yaml"
    manifest.write_text(text)
    command = [sys.executable, "-m", "datum_compute.cli.main", "deploy", "-f", str(manifest)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [f"Error: {manifest}: it is nested more than 100 levels deep"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (manifest() | {"speck": {}}, 'Error: shop.yaml: unknown field "speck"\n'),
        (manifest(lables={"a": "b"}), 'Error: shop.yaml: unknown field "metadata.lables"\n'),
        (
            manifest() | {"spec": manifest()["spec"] | {"replicas": 3}},
            'Error: workload "shop" was rejected:\n  unknown field "spec.replicas"\n',
        ),
    ],
)
def test_unknown_fields_are_refused(api: ApiServer, compute: Compute, write: Write, body: Json, error: str) -> None:
    write(body)
    result = compute("deploy", "-f", "shop.yaml", "--no-wait")
    assert (result.code, result.err) == (1, error)
    assert api.all(WORKLOAD) == []


def test_an_update_with_unknown_fields_is_refused(api: ApiServer, compute: Compute, world: World, write: Write) -> None:
    before = world.workload().metadata.resource_version
    write(manifest() | {"spec": manifest()["spec"] | {"replicas": 3}})
    result = compute("deploy", "-f", "shop.yaml", "--no-wait")
    assert (result.code, result.err) == (1, 'Error: workload "shop" was rejected:\n  unknown field "spec.replicas"\n')
    assert api.get(WORKLOAD, "shop").metadata.resource_version == before
