"""Error messages for every kind of answer of the server."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.talk.project import Advice, Project
from datum_compute.kube.access.kubeconfig import Endpoint
from datum_compute.kube.blocking import BlockingTransport
from datum_compute.kube.transport import Answer, Call
from tests.cli.conftest import Compute, FakeClock, World, kubeconfig
from tests.cli.server import ApiServer, Rule


def context_line(compute: Compute) -> str:
    """The line that tells where the kubeconfig led, which may not be where its user thinks."""
    return f'  in context "project-demo" of {compute.environ["KUBECONFIG"]}\n'


@pytest.mark.parametrize(
    ("words", "error", "next_command"),
    [
        (["status", "nope"], 'workload "nope" not found in project demo', "compute workloads"),
        (["scale", "nope", "--min=2"], 'workload "nope" not found in project demo', "compute workloads"),
        (["restart", "nope"], 'workload "nope" not found in project demo', "compute workloads"),
        (["destroy", "nope", "-y"], 'workload "nope" not found in project demo', "compute workloads"),
        (["rollout", "nope"], 'workload "nope" not found in project demo', "compute workloads"),
        (["workloads", "describe", "nope"], 'workload "nope" not found in project demo', "compute workloads"),
        (["instances", "--workload=nope"], 'workload "nope" not found in project demo', "compute workloads"),
        (["instances", "describe", "nope-0"], 'instance "nope-0" not found in project demo', "compute instances"),
    ],
)
def test_404_is_reported_once_with_exit_3(
    api: ApiServer, compute: Compute, words: list[str], error: str, next_command: str
) -> None:
    result = compute(*words)
    assert (result.code, result.out) == (3, "")
    assert result.err == f"Error: {error}\n{context_line(compute)}\n{next_command}\n"
    assert api.writes() == []


def test_401(api: ApiServer, compute: Compute) -> None:
    api.answer("GET", "workloads", 401, reason="Unauthorized")
    result = compute("workloads")
    assert result.code == 7
    assert result.err == ('Error: not signed in or session expired — check the credentials of context "project-demo"\n')


@pytest.mark.parametrize(
    ("method", "words", "error"),
    [
        ("GET", ["workloads"], "list workloads"),
        ("GET", ["status", "shop"], "get workloads"),
        ("PUT", ["scale", "shop", "--min=3"], "update workloads"),
        ("DELETE", ["destroy", "shop", "-y"], "delete workloads"),
    ],
)
def test_403_names_what_is_not_allowed(
    api: ApiServer, compute: Compute, world: World, method: str, words: list[str], error: str
) -> None:
    world.settled()
    api.answer(method, "/workloads", 403, "User x cannot", reason="Forbidden")
    result = compute(*words)
    expected = f"Error: you do not have permission to {error} in project demo\n{context_line(compute)}"
    assert (result.code, result.err) == (7, expected)


def test_403_of_a_suspended_project_shows_the_cause(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    causes = [{"reason": "ProjectSuspended", "message": "project demo is suspended: unpaid", "field": ""}]
    api.answer("PUT", "/workloads", 403, reason="Forbidden", details={"causes": causes})
    assert compute("scale", "shop", "--min=3").err.endswith(
        f"  project demo is suspended: unpaid\n{context_line(compute)}"
    )


def test_422_lists_every_cause(api: ApiServer, compute: Compute) -> None:
    causes = [
        {"reason": "FieldValueInvalid", "message": "Invalid value: 5", "field": "spec.placements[0].x"},
        {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.template"},
    ]
    api.answer("POST", "/workloads", 422, "is invalid", reason="Invalid", details={"causes": causes})
    result = compute("deploy", "shop", "--image=x", "--city=DFW")
    assert result.code == 1
    assert result.err == (
        'Error: workload "shop" was rejected:\n'
        "  spec.placements[0].x: Invalid value: 5\n"
        "  spec.template: Required value\n"
    )


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_read_is_retried_and_then_fails(api: ApiServer, compute: Compute, clock: FakeClock, code: int) -> None:
    api.answer("GET", "/workloads", code, "try later", times=4)
    assert compute("workloads").code == 0
    assert len(clock.slept) == 4
    api.answer("GET", "/workloads", code, "try later", times=5)
    result = compute("workloads")
    assert (result.code, result.err) == (1, "Error: listing workloads: try later\n")


def test_a_write_that_fails_is_reported_and_not_retried(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    api.answer("PUT", "/workloads", 500, "boom")
    result = compute("scale", "shop", "--min=3")
    assert (result.code, result.err) == (1, 'Error: updating workload "shop": boom\n')
    assert len(api.writes()) == 1


def test_a_truncated_body_is_reported_in_one_line(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    api.rules.append(Rule("GET", "/workloads/shop", lambda: Answer(200, b'{"metadata":{"name":"sh')))
    result = compute("status", "shop")
    assert result.code == 1
    assert result.err.startswith('Error: reading workload "shop": the server\'s answer makes no sense (')
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("path", ["", "/apis/resourcemanager.miloapis.com/v1alpha1/projects/demo/control-plane"])
def test_an_unreachable_server_is_an_error(compute: Compute, tmp_path: Path, path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    file = kubeconfig(tmp_path / "gone", f"http://127.0.0.1:{port}{path}")
    result = compute("workloads", environ={"KUBECONFIG": str(file)})
    assert result.code == 1
    error = (
        f'Error: checking access to compute: nothing listens on 127.0.0.1:{port} (context "project-demo" of {file})\n'
    )
    assert result.err == (f"{error}\ncompute local up\n" if path else error)


def test_two_at_once_both_edits_are_kept(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    api.before("PUT", "/workloads/shop", lambda: api.patch(WORKLOAD, "shop", {"metadata": {"labels": {"by": "other"}}}))
    result = compute("scale", "shop", "--min=5")
    assert result.code == 0
    after = api.get(WORKLOAD, "shop")
    assert after.metadata.labels == {"by": "other"}
    assert after.spec.placements[0].scale_settings.min_replicas == 5


def test_an_update_that_always_conflicts_fails_in_the_end(
    api: ApiServer, compute: Compute, world: World, clock: FakeClock
) -> None:
    world.settled()
    api.answer("PUT", "/workloads/shop", 409, "modified", times=5, reason="Conflict")
    result = compute("scale", "shop", "--min=5")
    assert result.code == 4
    assert result.err == 'Error: workload "shop" was changed by someone else at the same time; try again\n'
    assert len(api.writes()) == 5
    assert len(clock.slept) == 4
    assert api.get(WORKLOAD, "shop").spec.placements[0].scale_settings.min_replicas == 2


def test_lists_are_read_page_by_page(api: ApiServer, compute: Compute) -> None:
    for number in range(3):
        World(api, f"shop-{number}").workload()
    page = api.do(api.engine._planes["demo"].answer(_list(limit="2")))
    api.rules.append(Rule("GET", "/workloads", lambda: page))
    result = compute("workloads", "-o", "name")
    assert result.out == "workload/shop-0\nworkload/shop-1\nworkload/shop-2\n"
    pages = [seen.query for seen in api.requests if seen.path.endswith("/workloads")]
    assert [query["limit"] for query in pages] == ["500", "500"]
    assert "continue" in pages[1]


def test_a_list_that_expires_between_two_pages_is_read_again_without_pages(api: ApiServer, compute: Compute) -> None:
    for number in range(3):
        World(api, f"shop-{number}").workload()
    page = api.do(api.engine._planes["demo"].answer(_list(limit="2")))
    api.rules.append(Rule("GET", "/workloads", lambda: page))
    api.answer("GET", "/workloads", 410, "too old resource version", reason="Expired")
    result = compute("workloads", "-o", "name")
    assert result.out == "workload/shop-0\nworkload/shop-1\nworkload/shop-2\n"
    options = [seen.query.keys() & {"limit", "continue"} for seen in api.requests if seen.path.endswith("/workloads")]
    assert options == [{"limit"}, {"limit", "continue"}, set()]


def _list(**query: str) -> Call:
    return Call("GET", WORKLOAD.path("default"), query)


def test_warnings_of_the_server_go_to_stderr(api: ApiServer, compute: Compute) -> None:
    body = api.do(api.engine._planes["demo"].answer(_list())).body
    api.rules.append(Rule("GET", "/workloads", lambda: Answer(200, body, ("v1alpha is old",))))
    assert compute("workloads").err == "warning: v1alpha is old\n"


def test_verbose_shows_calls_and_hides_secrets(api: ApiServer, compute: Compute) -> None:
    result = compute("deploy", "shop", "--image=x", "--city=DFW", "--env=TOKEN=hush", "--no-wait", "-vv")
    assert (
        "POST /apis/compute.datumapis.com/v1alpha/namespaces/default/workloads?fieldValidation=Strict 201" in result.err
    )
    assert '"name":"TOKEN","value":"(hidden)"' in result.err
    for secret in ("hush", "s3cret"):
        assert secret not in result.err + result.out


def test_the_user_should_check_a_write_that_was_cut_off(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    api.rules.append(Rule("PUT", "/workloads/shop", _gone))
    result = compute("scale", "shop", "--min=3")
    assert result.code == 1
    assert result.err.splitlines()[1] == "  It is not known whether the change was made; check before you try again."


def _gone() -> Answer:
    raise ConnectionAbortedError


def test_an_object_of_another_shape_is_reported_in_one_line(api: ApiServer, compute: Compute, world: World) -> None:
    world.settled()
    odd = b'{"metadata":{"name":"shop"},"spec":{"placements":"everywhere"}}'
    api.rules.append(Rule("GET", "/workloads/shop", lambda: Answer(200, odd)))
    result = compute("status", "shop")
    assert result.code == 1
    assert result.err.startswith("Error: the server sent an object that makes no sense: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["scale", "shop", "--min=9"], ["restart", "shop"], ["deploy", "shop", "--image=other"]]
)
def test_a_workload_being_deleted_is_not_changed(
    api: ApiServer, compute: Compute, world: World, words: list[str]
) -> None:
    world.workload(finalizers=["compute.datumapis.com/workload-controller"])
    api.delete(WORKLOAD, "shop")
    result = compute(*words)
    assert result.code == 1
    assert result.err == (
        'Error: workload "shop" is being deleted; wait until it is gone\n\ncompute destroy shop --wait\n'
    )
    assert api.writes() == []


def test_a_name_never_becomes_another_address(api: ApiServer, compute: Compute) -> None:
    assert compute("instances", "describe", "../../secrets/x").code == 2
    assert api.requests == []


@pytest.mark.parametrize("name", ["../x", "a/b", "a b", "..", "a?b"])
def test_an_invalid_name_is_refused_by_every_call(api: ApiServer, name: str) -> None:
    """Whatever a verb lets pass."""
    transport = BlockingTransport(Endpoint(api.project_url()))
    project = Project("demo", transport, Advice("sign in"), pause=lambda seconds: None, warn=print)
    calls: list[Callable[[], object]] = [
        lambda: project.get(WORKLOAD, name),
        lambda: project.find(WORKLOAD, name),
        lambda: project.delete(WORKLOAD, name, "1"),
    ]
    for call in calls:
        with pytest.raises(Failure, match="is not a valid workload name") as error:
            call()
        assert error.value.code is Exit.USAGE
    assert api.requests == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status"], 2), (["workloads", "describe"], 2), (["destroy", "-y"], 2), (["instances", "describe"], 2),
        (["rollout", "history"], 2), (["scale", "--min=1"], 2), (["cities", "describe"], 3),
        (["instance-types", "describe"], 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["../x", "a/b", "a b"])
def test_every_verb_reports_an_invalid_name_in_one_sentence(
    api: ApiServer, compute: Compute, words: list[str], code: int, name: str
) -> None:
    result = compute(*words, name)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("Error: ")
    assert "should not happen" not in result.err
