"""The target of a command: the order of choices, the project, and errors when something is missing."""

import fcntl
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.kube.access.kubeconfig import Endpoint, write_kubeconfig
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer
from datum_compute.local.state import Paths, Running
from tests.cli.conftest import Compute, FakeClock, World, entitle, kubeconfig
from tests.cli.server import ApiServer, Rule


@pytest.fixture
def alone(clock: FakeClock) -> Compute:
    """With an empty environment."""
    return Compute(clock, {})


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """A credentials helper that writes down how it was called."""
    path = tmp_path / "datumctl"
    path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ntail -n 1 {tmp_path}/token\n')
    path.chmod(stat.S_IRWXU)
    (tmp_path / "token").write_text("from-helper\n")
    return path


@pytest.fixture
def federation(bare_api: ApiServer, tmp_path: Path) -> Iterator[Running]:
    """What a federation that runs in the default directory leaves there, served by the test's server."""
    paths = Paths(tmp_path / "local")
    paths.directory.mkdir()
    running = Running(1, 1, bare_api.url, str(paths.directory), "demo", ["DFW", "AMS"])
    paths.running.write_bytes(encode(running))
    write_kubeconfig(paths.kubeconfig, {"project-demo": Endpoint(bare_api.project_url(), token="t")}, "project-demo")
    with paths.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield running


def test_the_kubeconfig_flag_wins_over_everything_else(
    alone: Compute, api: ApiServer, tmp_path: Path, federation: Running
) -> None:
    path = kubeconfig(tmp_path / "named", api.project_url(), "somewhere")
    result = alone(
        "workloads", "--kubeconfig", str(path), environ={"DATUM_API_HOST": "127.0.0.1:1", "KUBECONFIG": "/nowhere"}
    )
    assert (result.code, result.err) == (0, "")
    assert api.requests[0].authorization == "Bearer s3cret"


def test_a_context_flag_applies_to_the_kubeconfig_of_the_environment(
    alone: Compute, api: ApiServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "k", api.project_url(), "one")
    assert alone("workloads", "--context=one", environ={"KUBECONFIG": str(path)}).code == 0
    result = alone("workloads", "--context=two", environ={"KUBECONFIG": str(path)})
    assert result.code == 2
    assert result.err == f'Error: {path} has no context "two"; it has one\n'


def test_a_plugin_uses_the_platform_with_a_token_of_the_helper(
    alone: Compute, api: ApiServer, helper: Path, tmp_path: Path
) -> None:
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_SESSION": "s1"}
    result = alone(
        "workloads", program="datumctl compute", environ=environ | {"KUBECONFIG": "/nowhere", "DATUM_PROJECT": "demo"}
    )
    assert (result.code, result.err) == (0, "")
    assert {seen.authorization for seen in api.requests} == {"Bearer from-helper"}
    assert all("/projects/demo/control-plane/" in seen.path for seen in api.requests)
    assert (tmp_path / "calls").read_text() == "auth get-token --session s1\n"


def test_the_project_flag_wins_over_the_environment(alone: Compute, api: ApiServer, helper: Path) -> None:
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "other"}
    assert alone("workloads", "--project=demo", environ=environ).out.startswith("No workloads found in project demo.")


def test_a_refused_token_is_fetched_again_once(alone: Compute, api: ApiServer, helper: Path, tmp_path: Path) -> None:
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}

    def rotate() -> Answer:
        (tmp_path / "token").write_text("fresh\n")
        return Answer(401, b"{}")

    api.rules.append(Rule("GET", "serviceentitlements", rotate))
    assert alone("workloads", environ=environ).code == 0
    assert [seen.authorization for seen in api.requests[:3]] == ["Bearer from-helper", "Bearer fresh", "Bearer fresh"]


def test_a_token_that_is_refused_twice_is_an_error(alone: Compute, api: ApiServer, helper: Path) -> None:
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    api.answer("GET", "serviceentitlements", 401)
    result = alone("workloads", environ=environ)
    assert (result.code, result.err) == (7, "Error: not signed in or session expired — run 'datumctl login'\n")


@pytest.mark.parametrize(
    ("environ", "code", "error"),
    [
        (
            {"DATUM_CREDENTIALS_HELPER": ""},
            1,
            "DATUM_CREDENTIALS_HELPER is not set; is this plugin running via datumctl?",
        ),
        ({"DATUM_API_HOST": ""}, 1, "DATUM_API_HOST is not set; is this plugin running via datumctl?"),
        ({"DATUM_PROJECT": ""}, 2, "no project set — pass --project or run 'datumctl ctx use <org>/<project>'"),
        (
            {"DATUM_PROJECT": "../x"},
            2,
            '"../x" is not a valid project name: use lower-case letters, digits and hyphens',
        ),
        (
            {"DATUM_CREDENTIALS_HELPER": "/no/such/file"},
            7,
            "getting credentials: [Errno 2] No such file or directory: '/no/such/file'",
        ),
        ({"DATUM_CREDENTIALS_HELPER": "/bin/false"}, 7, "getting credentials: /bin/false gave no token"),
        (
            {"DATUM_COMPUTE_CA_FILE": "/no/ca"},
            1,
            "DATUM_COMPUTE_CA_FILE /no/ca cannot be read: [Errno 2] No such file or directory: '/no/ca'",
        ),
    ],
)
def test_missing_settings_of_a_plugin_are_named(
    alone: Compute, api: ApiServer, helper: Path, environ: dict[str, str], code: int, error: str
) -> None:
    given = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    result = alone("workloads", environ=given | environ)
    assert (result.code, result.err) == (code, f"Error: {error}\n")


def test_kubeconfig_wins_over_a_local_federation(
    alone: Compute, api: ApiServer, federation: Running, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "k", api.project_url())
    assert alone("workloads", environ={"KUBECONFIG": str(path)}).err == ""


def test_a_local_federation_is_the_last_choice_and_announced(
    alone: Compute, api: ApiServer, federation: Running
) -> None:
    World(api).settled()
    result = alone("workloads", "-o", "name")
    assert (result.code, result.out) == (0, "workload/shop\n")
    assert result.err == "Using the local federation, project demo.\n"


def test_quiet_does_not_announce_the_local_federation(alone: Compute, api: ApiServer, federation: Running) -> None:
    assert alone("workloads", "-q").err == ""


def test_another_project_of_a_local_federation_can_be_named(
    alone: Compute, api: ApiServer, federation: Running
) -> None:
    result = alone("workloads", "--project=nope")
    assert result.code == 13
    assert "project nope does not exist or does not serve workloads" in result.err
    assert result.err.endswith("\n\ncompute local status\n")  # which lists those that exist


def test_the_environment_can_name_a_project_of_the_local_federation(
    alone: Compute, api: ApiServer, federation: Running
) -> None:
    result = alone("workloads", environ={"DATUM_PROJECT": "elsewhere"})
    assert result.code == 13
    assert "project elsewhere does not exist or does not serve workloads" in result.err
    flag = alone("workloads", "--project=demo", environ={"DATUM_PROJECT": "elsewhere"})
    assert (flag.code, flag.err) == (0, "Using the local federation, project demo.\n")


def test_a_stopped_local_federation_is_not_used(alone: Compute, tmp_path: Path) -> None:
    paths = Paths(tmp_path / "local")
    paths.directory.mkdir()
    paths.lock.touch()
    paths.running.write_text("{}")
    result = alone("workloads")
    assert (result.code, result.err.splitlines()[-1]) == (2, "compute local up")


@pytest.mark.parametrize("words", [[], ["--project=demo"]])
def test_a_context_is_the_project_that_its_address_names(
    alone: Compute, api: ApiServer, tmp_path: Path, words: list[str]
) -> None:
    path = kubeconfig(tmp_path / "k", api.project_url(), "whatever")
    assert alone("workloads", *words, environ={"KUBECONFIG": str(path)}).out.startswith(
        "No workloads found in project demo."
    )


def test_an_address_without_a_project_leaves_the_name_of_the_context(
    alone: Compute, api: ApiServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "k", api.url, "cluster-7")
    result = alone("workloads", environ={"KUBECONFIG": str(path)})
    assert "project cluster-7 does not exist or does not serve workloads" in result.err


def test_a_project_other_than_that_of_the_context_is_refused(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", api.project_url(), "here")
    result = alone("workloads", "--project=lab", environ={"KUBECONFIG": str(path)})
    assert result.code == 2
    assert result.err == 'Error: context "here" is project demo, not lab; choose another one with --context\n'
    assert api.requests == []


def test_a_project_chooses_its_context(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "k"
    contexts = {
        "current": Endpoint("http://127.0.0.1:1/projects/lab/control-plane"),
        "datum-project-demo": Endpoint(api.project_url()),
    }
    write_kubeconfig(path, contexts, "current")
    assert alone("workloads", "--project=demo", environ={"KUBECONFIG": str(path)}).code == 0


def test_the_project_of_the_environment_chooses_its_context(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    path = tmp_path / "k"
    contexts = {
        "current": Endpoint("http://127.0.0.1:1/projects/lab/control-plane"),
        "project-demo": Endpoint(api.project_url()),
    }
    write_kubeconfig(path, contexts, "current")
    environ = {"KUBECONFIG": str(path), "DATUM_PROJECT": "demo"}
    assert alone("workloads", environ=environ).out.startswith("No workloads found in project demo.")
    result = alone("workloads", environ=environ | {"DATUM_PROJECT": "shop"})
    assert (result.code, result.err) == (
        2,
        'Error: context "current" is project lab, not shop; choose another one with --context\n',
    )


def test_a_context_that_is_named_after_its_project_names_it(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", api.url, "datum-project-lab")
    result = alone("workloads", environ={"KUBECONFIG": str(path)})
    assert "project lab does not exist or does not serve workloads" in result.err


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"username": "ann", "password": "pw"}, "Basic YW5uOnB3"),
        ({"exec": "plugin"}, "Bearer from-plugin"),
        ({"tokenFile": "token"}, "Bearer from-file"),
    ],
    ids=["token", "basic", "exec", "file"],
)
def test_the_credentials_of_a_context_are_shown(
    alone: Compute, api: ApiServer, tmp_path: Path, user: dict[str, object], authorization: str
) -> None:
    (tmp_path / "token").write_text("from-file\n")
    credential = {"apiVersion": _EXEC, "kind": "ExecCredential", "status": {"token": "from-plugin"}}
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    plugin.chmod(stat.S_IRWXU)
    if "exec" in user:
        user = {"exec": {"apiVersion": _EXEC, "command": str(plugin), "interactiveMode": "Never"}}
    path = kubeconfig(tmp_path / "k", api.project_url())
    path.write_text(path.read_text().replace('{"token": "s3cret"}', json.dumps(user)))
    assert alone("workloads", environ={"KUBECONFIG": str(path)}).code == 0
    assert {seen.authorization for seen in api.requests} == {authorization}


def test_a_missing_credential_plugin_is_named_with_advice(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    plugin = {"apiVersion": _EXEC, "command": "no-such-plugin", "interactiveMode": "Never", "installHint": "get it"}
    path = kubeconfig(tmp_path / "k", api.project_url())
    path.write_text(path.read_text().replace('{"token": "s3cret"}', json.dumps({"exec": plugin})))
    result = alone("workloads", environ={"KUBECONFIG": str(path)})
    assert result.code == 7
    assert "no-such-plugin" in result.err
    assert "get it" in result.err
    assert api.requests == []


_EXEC = "client.authentication.k8s.io/v1"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "is not YAML"),
        ("{}", "has no current context"),
        (json.dumps({"current-context": "x"}), 'has no context "x"'),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(alone: Compute, tmp_path: Path, content: str, error: str) -> None:
    path = tmp_path / "k"
    path.write_text(content)
    result = alone("workloads", environ={"KUBECONFIG": str(path)})
    assert result.code == 2
    assert result.err.startswith(f"Error: kubeconfig {path}" if "YAML" in error else f"Error: {path}")
    assert error in result.err


def test_a_self_hosted_plane_needs_no_entitlement(alone: Compute, bare_api: ApiServer, tmp_path: Path) -> None:
    bare_api.answer("GET", "serviceentitlements", 404, reason="NotFound")
    path = kubeconfig(tmp_path / "k", bare_api.project_url())
    assert alone("workloads", environ={"KUBECONFIG": str(path)}).code == 0


def test_a_platform_without_a_catalog_has_no_compute(alone: Compute, bare_api: ApiServer, helper: Path) -> None:
    entitle(bare_api)
    bare_api.answer("GET", "serviceentitlements", 404, reason="NotFound")
    environ = {"DATUM_API_HOST": bare_api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    result = alone("workloads", environ=environ)
    assert (result.code, result.err) == (13, "Error: the compute service is not available on this platform.\n")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:notaport", "bad host/x", "http://[::1", "ftp://host", "https://", "a..b", "h\n"]
)
def test_an_invalid_address_is_an_error(alone: Compute, helper: Path, host: str) -> None:
    environ = {"DATUM_API_HOST": host, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    result = alone("workloads", environ=environ)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert result.err.startswith('Error: DATUM_API_HOST: "')
    assert "is not the address of a server" in result.err


def test_an_invalid_address_in_a_kubeconfig_is_an_error(alone: Compute, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "http://127.0.0.1:notaport")
    result = alone("workloads", "--kubeconfig", str(path))
    assert (result.code, result.err) == (
        2,
        'Error: "http://127.0.0.1:notaport" is not the address of a server; write it like https://api.example.com:443\n',
    )


def test_the_password_in_an_address_is_not_repeated(alone: Compute, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "http://me:s3cret@127.0.0.1:notaport")
    result = alone("workloads", "--kubeconfig", str(path))
    assert (result.code, "s3cret" in result.err) == (2, False)


def test_suggested_commands_have_the_same_target(alone: Compute, api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "my files").mkdir()
    path = kubeconfig(tmp_path / "my files" / "k", api.project_url())
    flags = ("--project=demo", "--kubeconfig", str(path), "--context", "project-demo")
    there = f"--project=demo --kubeconfig='{path}' --context=project-demo"
    assert alone("status", "nope", *flags).err.splitlines()[-1] == f"compute workloads {there}"
    assert f"compute deploy hello --image=IMAGE --city=CITY {there}" in alone("workloads", *flags).out
    assert alone("status", *flags).err.splitlines()[-1] == "compute status --help"
