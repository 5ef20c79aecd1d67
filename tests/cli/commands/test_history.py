"""History and undo through the program: what each verb records, the output, and targets of an undo."""

import json
from typing import Any

import pytest
import yaml

from datum_compute.api.labels import WORKLOAD_NAME, WORKLOAD_UID
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.history import CURRENT, name_of
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import as_dict
from tests.cli.conftest import IMAGE, Compute, FakeClock, World, template
from tests.cli.server import ApiServer

NEWER = "registry.example/shop:2.2"


@pytest.fixture
def deployed(api: ApiServer, compute: Compute) -> Compute:
    """The workload shop, deployed by the program, so that its history begins with it."""
    assert compute("deploy", "shop", f"--image={IMAGE}", "--city=DFW", "--no-wait").code == 0
    return compute


def entries(api: ApiServer, workload: str = "shop") -> list[dict[str, Any]]:
    stored = api.get(CONFIG_MAP, name_of(workload)).data
    return [json.loads(stored[key]) for key in sorted(stored, key=int)]


def active(api: ApiServer) -> str:
    return api.get(CONFIG_MAP, name_of("shop")).metadata.annotations[CURRENT]


def update(compute: Compute, image: str = NEWER) -> None:
    assert compute("deploy", "shop", f"--image={image}", "--no-wait").code == 0


def test_a_deploy_begins_the_history(api: ApiServer, deployed: Compute) -> None:
    stored = api.get(CONFIG_MAP, name_of("shop"))
    workload = api.get(WORKLOAD, "shop")
    assert stored.metadata.labels == {
        WORKLOAD_NAME: "shop",
        WORKLOAD_UID: workload.metadata.uid,
        "app.kubernetes.io/managed-by": "datumctl-compute",
    }
    assert [owner.uid for owner in stored.metadata.owner_references] == [workload.metadata.uid]
    (entry,) = entries(api)
    assert (entry["rev"], entry["kind"], entry["changes"], entry["image"]) == (1, "deploy", "initial deploy", IMAGE)
    assert json.loads(entry["spec"]) == as_dict(workload.spec_json)


def test_deploy_scale_restart_undo_make_four_and_the_last_copies_the_first(
    api: ApiServer, deployed: Compute, clock: FakeClock
) -> None:
    before = as_dict(api.get(WORKLOAD, "shop").spec_json)
    update(deployed)
    deployed("restart", "shop")
    clock.turn(60)
    deployed("scale", "shop", "--min=3")
    result = deployed("rollout", "undo", "shop", "--to-revision=1")
    assert (result.code, result.err) == (0, "")
    assert [(entry["rev"], entry["kind"]) for entry in entries(api)] == [
        (1, "deploy"),
        (2, "deploy"),
        (3, "restart"),
        (4, "scale"),
        (5, "rollback"),
    ]
    assert active(api) == "5"
    assert entries(api)[-1]["sourceRev"] == 1
    assert as_dict(api.get(WORKLOAD, "shop").spec_json) == before


def test_deploy_scale_restart_and_a_bare_undo_copies_the_deploy(api: ApiServer, deployed: Compute) -> None:
    before = as_dict(api.get(WORKLOAD, "shop").spec_json)
    deployed("scale", "shop", "--min=3")
    deployed("restart", "shop")
    assert deployed("rollout", "undo", "shop").code == 0
    kinds = [(entry["rev"], entry["kind"], entry.get("sourceRev")) for entry in entries(api)]
    assert kinds == [(1, "deploy", None), (2, "scale", None), (3, "restart", None), (4, "rollback", 1)]
    assert active(api) == "4"
    assert as_dict(api.get(WORKLOAD, "shop").spec_json) == before


def test_undo_passes_over_what_asks_for_the_same(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    deployed("restart", "shop")
    deployed("restart", "shop")
    result = deployed("rollout", "undo", "shop")
    assert "Creating revision #5 (copy of #1)..." in result.lines
    assert api.get(WORKLOAD, "shop").spec.template.spec.runtime.sandbox is not None
    assert IMAGE.encode() in bytes(api.get(WORKLOAD, "shop").spec_json)


def test_undo_asks_first_and_no_changes_nothing(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    result = deployed("rollout", "rollback", "shop", stdin="n\n", tty=True)
    assert f"image: {NEWER} → {IMAGE}" in result.out
    assert result.lines[-1] == "Aborted."
    assert active(api) == "2"


def test_a_dry_run_of_undo_writes_nothing(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    assert deployed("rollout", "undo", "shop", "--dry-run").lines[-1] == "No changes made (dry run)."
    assert active(api) == "2"
    assert NEWER.encode() in bytes(api.get(WORKLOAD, "shop").spec_json)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--to-revision=1"], 1, "Error: workload is already at revision #1\n"),
        ([], 1, "Error: no previous revision to roll back to\n\ncompute rollout history shop\n"),
        (["--to-revision=9"], 3, "Error: revision #9 not found\n\ncompute rollout history shop\n"),
    ],
)
def test_undo_without_a_target_is_an_error(deployed: Compute, words: list[str], code: int, error: str) -> None:
    result = deployed("rollout", "undo", "shop", *words)
    assert (result.code, result.err) == (code, error)


def test_undo_without_a_history(compute: Compute, world: World) -> None:
    world.workload()
    result = compute("rollout", "undo", "shop")
    assert (result.code, result.err) == (1, 'Error: no revision history for workload "shop"; cannot undo\n')


def test_a_damaged_revision_is_reported_and_changes_nothing(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    broken = entries(api)[0] | {"spec": "{"}
    api.patch(CONFIG_MAP, name_of("shop"), {"data": {"1": json.dumps(broken)}})
    result = deployed("rollout", "undo", "shop", "--to-revision=1")
    assert result.code == 1
    assert result.err.startswith("Error: decoding stored spec for revision #1: ")
    assert active(api) == "2"


def test_the_table_is_newest_first(deployed: Compute, clock: FakeClock) -> None:
    clock.turn(120)
    update(deployed)
    result = deployed("rollout", "history", "shop")
    assert [line.split()[0] for line in result.lines] == ["REV", "#2", "#1"]
    assert "active" in result.lines[1]
    assert "2m ago" in result.lines[2]
    assert "initial deploy" in result.lines[2]


def test_long_changes_are_cut_unless_wide(deployed: Compute) -> None:
    update(deployed, "registry.example/a/very/long/name/of/an/image:2")
    assert "…" in deployed("rollout", "history", "shop").lines[1]
    assert "…" not in deployed("rollout", "history", "shop", "-o", "wide").lines[1]


def test_a_spec_of_the_history(deployed: Compute) -> None:
    update(deployed)
    result = deployed("rollout", "history", "shop", "--revision=1")
    assert IMAGE in result.out
    assert yaml.safe_load(result.out)["placements"][0]["cityCodes"] == ["DFW"]


def test_json_holds_every_revision_and_no_spec(deployed: Compute) -> None:
    deployed("deploy", "shop", "--env=KEY=hush", "--no-wait")
    result = deployed("rollout", "history", "shop", "-o", "json")
    assert [entry["revision"] for entry in json.loads(result.out)] == [2, 1]
    assert "hush" not in result.out


def test_without_any(compute: Compute, world: World) -> None:
    world.workload()
    result = compute("rollout", "history", "shop")
    assert (result.code, result.out) == (0, 'No revision history found for workload "shop".\n')


def test_an_external_change_is_shown_and_then_recorded(api: ApiServer, deployed: Compute) -> None:
    spec = as_dict(api.get(WORKLOAD, "shop").spec_json)
    spec["placements"][0]["scaleSettings"]["minReplicas"] = 7
    api.patch(WORKLOAD, "shop", {"spec": spec})
    top = deployed("rollout", "history", "shop").lines[1]
    assert top.startswith("(live)")
    assert "changed outside datumctl" in top
    assert "#1*" in deployed("status", "shop").out
    update(deployed)
    assert [entry["kind"] for entry in entries(api)] == ["deploy", "external", "deploy"]
    assert json.loads(entries(api)[1]["spec"])["placements"][0]["scaleSettings"]["minReplicas"] == 7


def test_a_namesake_starts_over(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    api.delete(WORKLOAD, "shop")
    deployed("deploy", "shop", f"--image={IMAGE}", "--city=DFW", "--no-wait")
    assert [entry["rev"] for entry in entries(api)] == [1]


def test_twenty_five_deploys_leave_the_last_twenty(api: ApiServer, deployed: Compute) -> None:
    for number in range(2, 26):
        update(deployed, f"shop:{number}")
    assert [entry["rev"] for entry in entries(api)] == list(range(6, 26))


def test_a_history_that_cannot_be_written_is_only_a_warning(api: ApiServer, deployed: Compute) -> None:
    api.answer("PUT", "/configmaps/", 403, "not you")
    result = deployed("deploy", "shop", f"--image={NEWER}", "--no-wait")
    assert result.code == 0
    assert result.err.startswith("  warning: could not write revision history: ")


def test_a_concurrent_first_entry_is_not_lost(api: ApiServer, deployed: Compute) -> None:
    for _ in range(4):
        api.answer("PUT", "/configmaps/", 409, "not the latest", reason="Conflict")
    update(deployed)
    assert [entry["rev"] for entry in entries(api)] == [1, 2]


def test_a_message_appears_in_the_history(api: ApiServer, deployed: Compute) -> None:
    deployed("scale", "shop", "--min=2", "-m", "for the sale")
    assert entries(api)[-1]["changes"] == "for the sale"


@pytest.mark.parametrize(
    ("environ", "actor"),
    [({"DATUM_COMPUTE_ACTOR": "ada"}, "ada"), ({}, "system:compute")],  # as the server knows them
)
def test_the_actor_is_recorded(api: ApiServer, deployed: Compute, environ: dict[str, str], actor: str) -> None:
    deployed("scale", "shop", "--min=2", environ=environ)
    assert entries(api)[-1]["actor"] == actor


def test_destroy_deletes_the_history(api: ApiServer, deployed: Compute) -> None:
    assert deployed("destroy", "shop", "-y").code == 0
    assert api.all(CONFIG_MAP) == []


def test_status_shows_the_revision(deployed: Compute) -> None:
    update(deployed)
    assert "Revision #2" in deployed("status", "shop").out
    assert json.loads(deployed("status", "shop", "-o", "json").out)["revision"] == 2


def test_a_restart_in_one_city_is_recorded_with_the_city(api: ApiServer, deployed: Compute, world: World) -> None:
    world.deployment("DFW")
    deployed("restart", "shop", "--city=dfw")
    assert (entries(api)[-1]["kind"], entries(api)[-1]["changes"]) == ("restart", "restart in DFW")


def test_an_unreadable_history_does_not_affect_other_output(api: ApiServer, deployed: Compute) -> None:
    api.answer("GET", "/configmaps/", 403, "not you")
    result = deployed("status", "shop")
    assert (result.code, "Revision #—" in result.out) == (0, True)


def test_nothing_that_was_recorded_can_forge_a_line(deployed: Compute) -> None:
    forged = "fix\n#9     1s ago\x1b[1A"
    flags = ("--env", f"KEY={forged}", "-m", forged, "--no-wait")
    assert deployed("deploy", "shop", *flags).code == 0
    for words in (
        ["rollout", "history", "shop"],
        ["workloads", "describe", "shop"],
        ["rollout", "undo", "shop", "--dry-run"],
    ):
        result = deployed(*words, tty=True, columns=200, environ={"NO_COLOR": "1"})
        assert result.code == 0
        assert "\x1b[1A" not in result.out
        assert not [line for line in result.lines if line.startswith("#9")]
    assert r"fix\n#9     1s ago\x1b[1A" in deployed("rollout", "history", "shop", "-o", "wide").out


def test_revision_0_is_the_previous_one(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    assert deployed("rollout", "undo", "shop", "--to-revision=0").code == 0
    assert entries(api)[-1]["changes"] == "rollback to rev #1"


def test_a_dry_run_of_undo_prints_the_object_for_programs(api: ApiServer, deployed: Compute) -> None:
    update(deployed)
    result = deployed("rollout", "undo", "shop", "--dry-run", "-o", "json")
    containers = json.loads(result.out)["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"]
    assert containers[0]["image"] == IMAGE
    assert result.err.endswith("No changes made (dry run).\n")
    assert len(entries(api)) == 2


def test_undo_after_an_external_change_goes_back_to_the_last_revision(api: ApiServer, deployed: Compute) -> None:
    deployed("deploy", "shop", "--image=registry.example/shop:3", "--no-wait")
    api.patch(WORKLOAD, "shop", {"spec": {"template": template("registry.example/broken")}})
    result = deployed("rollout", "undo", "shop")
    assert result.code == 0
    assert "Creating revision #4 (copy of #2)..." in result.lines
    assert b'"registry.example/shop:3"' in bytes(api.get(WORKLOAD, "shop").spec_json)
    assert [row.split()[0] for row in deployed("rollout", "history", "shop").lines[1:5]] == ["#4", "#3", "#2", "#1"]


def test_undo_to_the_live_spec_starts_nothing(api: ApiServer, deployed: Compute) -> None:
    deployed("scale", "shop", "--min=5")
    deployed("scale", "shop", "--min=1")
    api.requests.clear()
    result = deployed("rollout", "undo", "shop", "--to-revision=1")
    assert (result.code, result.out) == (0, 'Workload "shop" already matches revision #1; nothing to do.\n')
    assert api.writes() == []
