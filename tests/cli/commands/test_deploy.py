import json
from collections.abc import Callable

import pytest

from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.labels import RESTARTED_AT, ROLLOUT_PAUSED
from datum_compute.api.networking import NETWORK
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.workload.history import name_of
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import as_dict, timestamp
from tests.cli.conftest import IMAGE, Compute, FakeClock, World, condition, nothing, placement, template
from tests.cli.server import ApiServer

NEW = ("deploy", "shop", "--image=registry.example/shop:2.1", "--city=DFW,AMS", "--min=2", "--port=8080")


def rollout(world: World) -> list[Callable[[], object]]:
    """What the controllers do with a new workload, step by step."""

    def begin() -> None:
        world.observe()
        for city in ("AMS", "DFW"):
            world.deployment(city)
            world.report(city, 0, 0)

    def finish(city: str) -> None:
        world.report(city, 2, 2)
        for ordinal in range(2):
            world.instance(city, ordinal, address=f"198.51.100.{ordinal}" if city == "AMS" else "")

    return [begin, lambda: world.report("DFW", 1, 1), lambda: finish("DFW"), lambda: finish("AMS")]


def test_a_new_workload_from_flags_to_running(api: ApiServer, compute: Compute, world: World) -> None:
    result = compute(*NEW, steps=rollout(world))
    assert result.code == 0
    assert result.err == ""
    assert result.out == (
        'Resolving workload "shop" in project demo...\n'
        '  Placement "default": cities=[DFW, AMS], min=2\n'
        "  workload/shop created\n"
        "Waiting for rollout. Ctrl-C to detach (rollout continues in background).\n"
        "\n"
        "  PLACEMENT   CITY   DESIRED   UPDATED   READY   OLD   PHASE\n"
        "  default     AMS    2         —         0       —     Pending\n"
        "  default     DFW    2         —         0       —     Pending\n"
        "  default     AMS    2         0         0       0     Pending\n"
        "  default     DFW    2         0         0       0     Pending\n"
        "  default     DFW    2         1         1       0     Updating\n"
        "  default     DFW    2         2         2       0     Done\n"
        "  default     AMS    2         2         2       0     Done\n"
        "Rollout complete in 8.0s.\n"
        "\n"
        "  Instances:\n"
        "    AMS   shop-default-ams-0   198.51.100.0\n"
        "          shop-default-ams-1   198.51.100.1\n"
        "    DFW   shop-default-dfw-0   —\n"
        "          shop-default-dfw-1   —\n"
        "\n"
        "  Next steps:\n"
        "    Status:      compute status shop\n"
        "    Instances:   compute instances --workload=shop\n"
    )


def test_after_an_update_the_undo_command_is_suggested(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))

    def finish() -> None:
        world.observe()
        world.report("DFW", 2, 2)

    result = compute("deploy", "shop", "--image=shop:9", steps=[finish])
    assert result.lines[-4:] == [
        "  Next steps:",
        "    Status:      compute status shop",
        "    Instances:   compute instances --workload=shop",
        "    Roll back:   compute rollout undo shop",
    ]


def test_a_deploy_that_is_overtaken_by_another_one_is_not_called_complete(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.settled(("DFW",))

    def finish_another() -> None:
        api.patch(WORKLOAD, "shop", {"spec": {"template": template("shop:10")}})
        world.observe()
        world.report("DFW", 2, 2)

    result = compute("deploy", "shop", "--image=shop:9", steps=[finish_another])
    assert (result.code, result.err) == (
        1,
        'Error: workload "shop" was changed again, so this version is no longer rolled out\n'
        "\n"
        "compute rollout history shop\n",
    )
    assert "complete" not in result.out


def test_a_restart_meanwhile_does_not_end_the_wait_of_a_deploy(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))

    def restart() -> None:
        metadata = {"annotations": {RESTARTED_AT: timestamp(compute.clock.now())}}
        api.patch(WORKLOAD, "shop", {"spec": {"template": {"metadata": metadata}}})
        world.observe()
        world.report("DFW", 2, 2)

    result = compute("deploy", "shop", "--image=shop:9", steps=[restart])
    assert (result.code, result.err) == (0, "")


def test_a_deploy_does_not_wait_while_the_rollout_is_paused(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    result = compute("deploy", "shop", "--image=shop:9")
    assert (result.code, result.lines[-2:]) == (
        0, ['Rollout of workload "shop" is paused.', "Run 'compute rollout resume shop' to resume it."],
    )  # fmt: skip


def test_an_unchanged_deploy_says_that_the_rollout_is_paused(api: ApiServer, compute: Compute, world: World) -> None:
    """All instances run the image before this one, which the first deploy of it could not change."""
    world.settled(("DFW",))
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})
    for _ in range(2):
        result = compute("deploy", "shop", "--image=shop:9")
    assert (result.code, result.lines[-3:]) == (
        0,
        [
            "No changes detected.",
            'Rollout of workload "shop" is paused.',
            "Run 'compute rollout resume shop' to resume it.",
        ],
    )


def test_in_other_character_sets(api: ApiServer, compute: Compute, world: World) -> None:
    rich(world)
    result = compute("deploy", "shop", "--image=shop:2", "--no-wait", encoding="ascii")
    assert "  image: shop:1 -> shop:2" in result.lines


def test_a_message_replaces_the_changes(api: ApiServer, compute: Compute) -> None:
    compute(*NEW, "--no-wait", "-m", "first light")
    entry = json.loads(api.get(CONFIG_MAP, name_of("shop")).data["1"])
    assert (entry["changes"], entry["kind"]) == ("first light", "deploy")


def test_a_history_that_cannot_be_written_is_a_warning(api: ApiServer, compute: Compute) -> None:
    api.answer("POST", "/configmaps", 403, reason="Forbidden")
    result = compute(*NEW, "--no-wait")
    assert result.code == 0
    assert result.err.startswith("  warning: could not write revision history: you do not have permission")


def test_a_write_that_always_conflicts_fails_in_the_end(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    api.answer("PUT", "/workloads/shop", 409, "modified", times=5, reason="Conflict")
    result = compute("deploy", "shop", "--image=shop:9")
    assert (result.code, result.err) == (
        4, 'Error: workload "shop" was changed by someone else at the same time; try again\n',
    )  # fmt: skip
    assert len(api.writes()) == 5
    assert api.all(CONFIG_MAP) == []


def test_the_workload_that_is_written(api: ApiServer, compute: Compute) -> None:
    compute(*NEW, "--env=A=b=c", "--instance-type=datumcloud/d1-standard-2", "--no-wait")
    assert as_dict(api.get(WORKLOAD, "shop").spec_json) == {
        "template": template(
            ports=[{"name": "http", "port": 8080, "protocol": "TCP"}], env=[{"name": "A", "value": "b=c"}]
        ),
        "placements": [
            {
                "name": "default",
                "cityCodes": ["DFW", "AMS"],
                "scaleSettings": {"minReplicas": 2, "instanceManagementPolicy": "OrderedReady"},
            }
        ],
    }


@pytest.mark.parametrize(
    "flags", [["--city=dfw,Ams"], ["--city=dfw", "--city=ams"], ["--city", "DFW, ams", "--city=DFW"]]
)
def test_cities_are_taken_in_the_spelling_of_the_platform(api: ApiServer, compute: Compute, flags: list[str]) -> None:
    assert compute("deploy", "shop", "--image=x", *flags, "--detach").code == 0
    assert api.get(WORKLOAD, "shop").spec.placements[0].city_codes == ("DFW", "AMS")


def test_an_unknown_city_is_refused_with_a_list_of_cities(api: ApiServer, compute: Compute) -> None:
    result = compute("deploy", "shop", "--image=x", "--city=DFW,XYZ")
    assert result.code == 2
    assert result.err == (
        'Error: city "XYZ" is not offered to project demo; choose one of AMS, DFW, SIN\n\ncompute cities\n'
    )
    assert api.writes() == []


def test_cities_that_cannot_be_checked_are_used_as_typed(api: ApiServer, compute: Compute) -> None:
    api.answer("GET", "locationbindings", 403, reason="Forbidden")
    compute("deploy", "shop", "--image=x", "--city=xyz", "--no-wait")
    assert api.get(WORKLOAD, "shop").spec.placements[0].city_codes == ("xyz",)


@pytest.mark.parametrize(
    ("flags", "error", "next_command"),
    [
        (["--city=DFW"], "--image is required", "compute deploy shop --image=IMAGE --city=CITY"),
        (["--image=x"], "--city is required (e.g. --city=DFW,IAD)", "compute cities"),
        ([], "--image is required", "compute deploy shop --image=IMAGE --city=CITY"),
    ],
)
def test_a_new_workload_needs_image_and_city(
    api: ApiServer, compute: Compute, flags: list[str], error: str, next_command: str
) -> None:
    result = compute("deploy", "shop", *flags)
    assert (result.code, result.err) == (2, f"Error: {error}\n\n{next_command}\n")
    assert api.writes() == []


def rich(world: World) -> None:
    """A workload with things in it that no flag knows."""
    spec = {
        "template": template(
            image="shop:1",
            env=[
                {"name": "LOG_LEVEL", "value": "debug"},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            ports=[{"name": "http", "port": 80}, {"name": "admin", "port": 9}],
            volumeAttachments=[{"name": "data", "mountPath": "/data"}],
        )
    }
    spec["template"]["metadata"] = {"labels": {"app": "shop"}, "annotations": {"team": "red"}}
    spec["template"]["spec"]["volumes"] = [{"name": "data", "configMap": {"name": "settings"}}]
    world.workload(("DFW",), spec=spec, labels={"owner": "me"}, annotations={"note": "x"})


def test_an_update_changes_only_what_a_flag_names(api: ApiServer, compute: Compute, world: World) -> None:
    rich(world)
    before = api.get(WORKLOAD, "shop")
    result = compute("deploy", "shop", "--image=shop:2", "--no-wait")
    assert result.code == 0
    assert result.out == (
        'Resolving workload "shop" in project demo...\n'
        '  Placement "default": cities=[DFW], min=2\n'
        "  image: shop:1 → shop:2\n"
        "  workload/shop updated\n"
        "Run 'compute rollout status shop' to watch progress.\n"
    )
    after = api.get(WORKLOAD, "shop")
    assert bytes(after.spec_json) == bytes(before.spec_json).replace(b"shop:1", b"shop:2")
    assert after.metadata.labels == {"owner": "me"}
    assert after.metadata.annotations == {"note": "x"}


def test_every_change_is_shown_before_it_is_made_without_values(api: ApiServer, compute: Compute, world: World) -> None:
    rich(world)
    env = ("--env=LOG_LEVEL-", "--env=NEW=hush", "--env=KEY=hush")
    result = compute("deploy", "shop", "--city=DFW,SIN", "--min=3", "--port=8080", *env, "--no-wait")
    assert result.lines[1:-1] == [
        '  Placement "default": cities=[DFW, SIN], min=3',
        '  placement "default" min replicas: 2 → 3',
        '  placement "default" cities: DFW → DFW, SIN',
        "  port http: 80 → 8080",
        "  env LOG_LEVEL: removed",
        "  env KEY: changed",
        "  env NEW: set",
        "  workload/shop updated",
    ]
    assert "hush" not in result.out + result.err


def test_no_change_means_no_write(api: ApiServer, compute: Compute, world: World) -> None:
    rich(world)
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 2, 2)
    api.requests.clear()
    result = compute("deploy", "shop", "--image=shop:1", "--min=2", "--city=dfw", "--env=LOG_LEVEL=debug")
    assert (result.code, result.lines[1:]) == (0, ["No changes detected."])
    assert api.writes() == []


def test_a_city_in_use_may_stay_when_it_is_no_longer_offered(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("OLD",))
    assert compute("deploy", "shop", "--city=old,DFW", "--no-wait").code == 0
    assert api.get(WORKLOAD, "shop").spec.placements[0].city_codes == ("OLD", "DFW")


def test_cities_and_numbers_of_several_placements_are_not_guessed(
    api: ApiServer, compute: Compute, world: World
) -> None:
    world.workload(spec={"placements": [placement("us", ["DFW"], 1), placement("eu", ["AMS"], 1)]})
    result = compute("deploy", "shop", "--min=3")
    assert result.code == 2
    assert result.err == (
        'Error: workload "shop" has 2 placements — edit it with a manifest: compute deploy -f workload.yaml\n'
        "  Get one:  compute workloads describe shop -o yaml > workload.yaml\n"
    )
    assert compute("deploy", "shop", "--image=shop:9", "--no-wait").code == 0


def test_a_virtual_machine_has_no_image_to_set(api: ApiServer, compute: Compute, world: World) -> None:
    machine = template()
    machine["spec"]["runtime"] = {
        "resources": {"instanceType": "datumcloud/d1-standard-2"},
        "virtualMachine": {"volumeAttachments": [{"name": "boot"}]},
    }
    machine["spec"]["volumes"] = [{"name": "boot", "disk": {"template": {"spec": {}}}}]
    world.workload(spec={"template": machine})
    result = compute("deploy", "shop", "--image=x")
    assert result.code == 2
    assert "is a virtual machine" in result.err


@pytest.mark.parametrize(
    ("answer", "code", "written"), [("y\n", 0, True), ("\n", 0, True), ("n\n", 0, False), ("", 0, False)]
)
def test_in_a_terminal_it_asks_first(api: ApiServer, compute: Compute, answer: str, code: int, written: bool) -> None:
    result = compute(*NEW, "--no-wait", tty=True, stdin=answer)
    assert result.code == code
    assert result.err.startswith("Apply? (Y/n): ")
    assert bool(api.all(WORKLOAD)) is written
    assert ("Aborted." in result.out) is not written


def test_yes_asks_nothing(api: ApiServer, compute: Compute) -> None:
    assert compute(*NEW, "--no-wait", "-y", tty=True).err == ""


def test_a_dry_run_lets_the_server_check_and_writes_nothing(api: ApiServer, compute: Compute, world: World) -> None:
    result = compute(*NEW, "--dry-run")
    assert (result.code, result.lines[-1]) == (0, "No changes made (dry run).")
    assert api.all(WORKLOAD) == []
    assert [seen.query for seen in api.writes()] == [{"dryRun": "All", "fieldValidation": "Strict"}]
    world.workload(("DFW",))
    result = compute("deploy", "shop", "--image=other", "--dry-run")
    assert (result.code, result.lines[-2:]) == (
        0, ["  image: registry.example/shop:2.1 → other", "No changes made (dry run)."],
    )  # fmt: skip
    assert api.get(WORKLOAD, "shop").metadata.generation == 1


class TestNetwork:
    @pytest.fixture(autouse=True)
    def _no_network(self, api: ApiServer) -> None:
        api.delete(NETWORK, "default")

    def test_without_a_terminal_the_question_is_an_error(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW)
        assert result.code == 1
        assert result.err == (
            'Error: network "default" not found in project demo — use --yes to auto-create or create it first\n'
        )
        assert api.writes() == []

    def test_yes_creates_the_network(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW, "-y", "--no-wait")
        assert result.lines[1:3] == [
            '  Network "default" does not exist in project demo.', "  network/default created",
        ]  # fmt: skip
        assert as_dict(api.get(NETWORK, "default").spec_json)["ipam"] == {"mode": "Auto"}

    def test_in_a_terminal_it_asks(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW, "--no-wait", tty=True, stdin="\n\n")
        assert result.err == "  Create it now? (Y/n): Apply? (Y/n): "
        assert api.all(WORKLOAD) != []

    def test_a_no_aborts(self, api: ApiServer, compute: Compute) -> None:
        result = compute(*NEW, tty=True, stdin="n\n")
        assert result.code == 1
        assert 'Error: network "default" is required' in result.err
        assert api.writes() == []

    def test_a_dry_run_does_not_create_the_network(self, api: ApiServer, compute: Compute) -> None:
        assert compute(*NEW, "-y", "--dry-run").code == 0
        assert api.all(NETWORK) == []

    def test_a_plane_without_networks_needs_none(self, api: ApiServer, compute: Compute) -> None:
        api.answer("GET", "/networks", 404, times=2, reason="NotFound")
        assert compute(*NEW, "--no-wait").code == 0

    def test_an_update_checks_the_networks_that_are_used(self, api: ApiServer, compute: Compute, world: World) -> None:
        other = template()
        other["spec"]["networkInterfaces"] = [{"network": {"name": "private"}}]
        world.workload(spec={"template": other})
        result = compute("deploy", "shop", "--image=x")
        assert (result.code, result.err) == (
            1, 'Error: network "private" not found in project demo — use --yes to auto-create or create it first\n',
        )  # fmt: skip
        assert api.writes() == []


def test_the_second_of_two_concurrent_creations_fails(api: ApiServer, compute: Compute, world: World) -> None:
    api.before("POST", "/workloads", lambda: world.workload(("SIN",)))
    result = compute(*NEW)
    assert result.code == 4
    assert result.err == 'Error: workload "shop" was created by someone else at the same time; try again\n'
    assert api.get(WORKLOAD, "shop").spec.placements[0].city_codes == ("SIN",)


def test_two_updates_at_once_both_count(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))

    def other() -> None:
        change = {"spec": {"placements": [placement("default", ["DFW", "AMS"], 2)]}}
        api.patch(WORKLOAD, "shop", change)

    api.before("PUT", "/workloads/shop", other)
    assert compute("deploy", "shop", "--image=shop:9", "--no-wait").code == 0
    after = api.get(WORKLOAD, "shop")
    assert after.spec.placements[0].city_codes == ("DFW", "AMS")
    sandbox = after.spec.template.spec.runtime.sandbox
    assert sandbox is not None
    assert sandbox.containers[0].image == "shop:9"


def test_a_redeploy_is_never_done_before_the_server_saw_it(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))

    def carry_down() -> None:
        api.patch(WORKLOAD_DEPLOYMENT, "shop-default-dfw", {"spec": {"template": template("shop:9")}})

    steps = [
        nothing,
        carry_down,
        world.observe,
        lambda: world.report("DFW", 0, 2, replicas=2),
        lambda: world.report("DFW", 2, 2),
    ]
    result = compute("deploy", "shop", "--image=shop:9", steps=steps)
    rows = [row.split() for row in result.lines if row.startswith("  default")]
    assert rows == [
        ["default", "DFW", "2", "—", "2", "—", "Pending"],
        ["default", "DFW", "2", "0", "2", "2", "Pending"],
        ["default", "DFW", "2", "2", "2", "2", "Done"],
    ]
    assert "Rollout complete in 10s." in result.out


@pytest.mark.parametrize("reason", ["ImageUnavailable", "InstanceCrashing"])
def test_a_second_deploy_of_what_does_not_start_fails_like_the_first(
    api: ApiServer, compute: Compute, world: World, reason: str
) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 0, available=condition("Available", "False", "InstancesProvisioning", "not yet"))
    world.instance("DFW", 0, condition("Programmed", "False", reason, "it does not start"))
    result = compute("deploy", "shop", f"--image={IMAGE}", "--timeout=20s", steps=[nothing] * 10)
    assert result.code == 5
    assert "No changes detected." in result.lines
    sentence, message, advice = result.lines[-3:]
    assert (message, "on its own" not in advice) == ("    it does not start", True)
    assert sentence.startswith("    shop is held up in DFW by ")
    assert sentence.endswith(" (2 of 2 instances), not ready for 0s. You can act.")
    assert result.err == (
        "Error: Still rolling out after 20s; nothing was undone.\n"
        f"  {sentence.strip().replace('0s', '20s')}\n"
        f"  DFW: {reason} — it does not start\n"
        "\ncompute status shop\n"
    )


def test_a_server_that_falls_silent_is_named_when_the_wait_ends(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    world.observe()

    def away() -> None:
        api.answer("GET", "/workloads/", 500, "out of order", times=1000)

    result = compute("deploy", "shop", f"--image={IMAGE}", "--timeout=20s", steps=[away, *[nothing] * 10])
    assert result.code == 5
    assert "Error: the server has not answered for" in result.err
    assert "Still rolling out" not in result.err


def test_stuck_on_quota_is_blocked_within_32_seconds_and_reported_once(
    api: ApiServer, compute: Compute, world: World
) -> None:
    why = condition("Available", "False", "QuotaNotGranted", "Requested 1 vCPU, 0 available.")

    def begin() -> None:
        world.observe()
        world.deployment("DFW")
        world.report("DFW", 0, 0, available=why)

    steps: list[Callable[[], object]] = [begin, *[nothing] * 25, lambda: world.report("DFW", 2, 2)]
    result = compute("deploy", "shop", "--image=x", "--city=DFW", "--min=2", steps=steps)
    assert result.code == 0
    blocked = "    Requested 1 vCPU, 0 available.\n"
    assert result.out.count(blocked) == 1
    assert f"Nothing to do.\n{blocked}    The rollout resumes on its own when this clears.\n" in result.out
    assert result.out.count("Blocked\n") == 1


def test_it_is_blocked_on_the_first_tick_after_thirty_seconds(api: ApiServer, compute: Compute, world: World) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 0, 0, available=condition("Available", "False", "QuotaNotGranted", "none left"))
    result = compute("rollout", "shop", "--timeout=32s", steps=[nothing] * 16)
    assert result.code == 5
    sentence = "shop is on its way in DFW: instances are waiting for quota, for 32s. Nothing to do."
    assert f"    {sentence}" in result.lines
    assert f"  {sentence}" in result.err.splitlines()
    again = compute("rollout", "shop", "--timeout=30s", steps=[nothing] * 16)
    assert "Blocked" not in again.out


def test_ctrl_c_detaches(api: ApiServer, compute: Compute) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    result = compute(*NEW, steps=[interrupt])
    assert result.code == 0
    assert result.lines[-2:] == [
        "Detached. Rollout continues in background.",
        "Run 'compute rollout status shop' to watch progress.",
    ]
    assert api.all(WORKLOAD) != []


def test_a_script_waits_at_most_15_minutes(api: ApiServer, compute: Compute) -> None:
    result = compute(*NEW, steps=[nothing] * 451)
    assert result.code == 5
    assert result.err == (
        "Error: Still rolling out after 15m; nothing was undone.\n"
        "  shop is held up by a platform that does not answer, since 12:00 (15m). The platform has to act.\n"
        "\ncompute status shop\n"
    )
    assert api.all(WORKLOAD) != []


def test_there_is_no_timeout_in_a_terminal(api: ApiServer, compute: Compute, world: World) -> None:
    steps = [*[nothing] * 500, *rollout(world)]
    assert compute(*NEW, "-y", tty=True, steps=steps).code == 0


def failing(world: World) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 0)
    world.instance("DFW", 0, condition("Programmed", "Unknown", "ImageUnavailable", "no such tag"))


def test_fail_fast_gives_up_when_an_instance_has_failed_for_a_minute(
    api: ApiServer, compute: Compute, world: World
) -> None:
    failing(world)
    result = compute("deploy", "shop", "--min=3", "--fail-fast", steps=[nothing] * 31)
    assert result.code == 6
    assert result.err == (
        "Error: instance shop-default-dfw-0 does not start: Failed (image unavailable)\n"
        "  shop is held up in DFW by its image, not ready for 1m. You can act.\n"
        "  no such tag\n"
        "  Look closer:  compute instances describe shop-default-dfw-0\n\n"
        "compute rollout undo shop\n"
    )


def test_fail_fast_gives_up_after_a_deploy_that_changes_nothing_as_well(compute: Compute, world: World) -> None:
    failing(world)
    result = compute("deploy", "shop", f"--image={IMAGE}", "--fail-fast", steps=[nothing] * 31)
    assert (result.code, "No changes detected." in result.lines) == (6, True)
    assert "Error: instance shop-default-dfw-0 does not start: Failed (image unavailable)\n" in result.err


def test_fail_fast_suggests_no_undo_without_an_earlier_revision(api: ApiServer, compute: Compute, world: World) -> None:
    def fail() -> None:
        world.observe()
        world.deployment("DFW")
        world.report("DFW", 1, 0)
        world.instance("DFW", 0, condition("Programmed", "Unknown", "InstanceCrashing"))

    result = compute("deploy", "shop", "--image=x", "--city=DFW", "--fail-fast", steps=[fail, *[nothing] * 31])
    assert result.code == 6
    assert "undo" not in result.err


def test_json_is_the_workload_and_nothing_else(api: ApiServer, compute: Compute, world: World) -> None:
    result = compute(*NEW, "-o", "json", steps=rollout(world))
    assert json.loads(result.out)["metadata"]["name"] == "shop"
    assert "Rollout complete" in result.err


def test_quiet_prints_only_results(api: ApiServer, compute: Compute, world: World) -> None:
    result = compute(*NEW, "-q", steps=rollout(world))
    assert (result.out, result.err) == ("  workload/shop created\n", "")


def test_read_errors_are_reported_once_and_do_not_end_the_wait(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))

    def fail() -> None:
        api.answer("GET", "/workloads/shop", 400, "what?", reason="BadRequest")

    result = compute("scale", "shop", "--min=3", "--wait", steps=[*[fail] * 8, world.observe])
    assert result.code == 0
    assert result.err == '  reading workload "shop": what?; still trying\n'


def test_a_workload_deleted_meanwhile_ends_the_wait(api: ApiServer, compute: Compute) -> None:
    result = compute(*NEW, steps=[lambda: api.delete(WORKLOAD, "shop")])
    assert result.code == 3
    assert 'workload "shop" not found in project demo' in result.err


def test_without_a_watch_it_is_read_every_two_seconds(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled(("DFW",))
    api.patch(WORKLOAD, "shop", {"spec": {"placements": [placement("default", ["DFW"], 5)]}})
    result = compute("rollout", "shop", "--timeout=10s", steps=[nothing] * 5, trusted=False)
    reads = [seen for seen in api.requests if seen.path.endswith("/workloads/shop")]
    assert result.code == 5
    assert len(reads) == 1 + 6


def test_an_unchanged_deploy_shows_the_time_since_the_change(compute: Compute, world: World, clock: FakeClock) -> None:
    world.workload(("DFW",))
    world.observe()
    world.deployment("DFW")
    world.report("DFW", 1, 1, replicas=2)
    clock.turn(60)
    result = compute("deploy", "shop", f"--image={IMAGE}", steps=[lambda: world.report("DFW", 2, 2)])
    assert (result.code, result.lines[-1]) == (0, "Rollout complete in 1m 2s.")
