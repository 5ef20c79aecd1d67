"""Nothing secret is ever printed: every command is run as loudly as it can be, in a project full of secrets."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.api.workload import WORKLOAD
from datum_compute.kube.kinds import CONFIG_MAP
from datum_compute.kube.meta import encode
from datum_compute.kube.transport import Answer
from tests.cli.commands.test_local import Pretended, pretended  # noqa: F401  (a fixture)
from tests.cli.conftest import Compute, FakeClock, kubeconfig
from tests.cli.product import MANIFEST
from tests.cli.scene import controllers, set_up
from tests.cli.server import ApiServer, Rule
from tests.cli.test_golden import WorkingClock, typed
from tests.cli.test_manual import leaves

TOKEN = "s3cret"  # in the kubeconfig of every test
VALUE = "v4lue-of-a-variable"
TYPED = "typed-by-the-user"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

# Whoever asks for the whole object gets it; a value in it is data then, and on stdout only.
WHOLE = ("-o json", "-o yaml", "--revision", "workloads describe", "instances describe")


@pytest.fixture
def clock() -> FakeClock:
    return WorkingClock()


@pytest.fixture
def secretive(api: ApiServer, compute: Compute, clock: WorkingClock, tmp_path: Path) -> Compute:
    """Each workload has a variable with a value, and an annotation that repeats it."""
    set_up(api, compute)
    for workload in api.all(WORKLOAD):
        flags = ("--image=registry.example/new:9", f"--env=KEY={VALUE}", "--no-wait", "--no-save")
        assert compute("deploy", workload.name, *flags).code == 0
        annotations = {APPLIED: f'{{"env":"{VALUE}"}}'}
        api.patch(WORKLOAD, workload.name, {"metadata": {"annotations": annotations}})
    controllers(api)
    clock.api = api
    (tmp_path / "workload.yaml").write_text(
        MANIFEST.replace("image: registry.example/mail:3", f"image: x, env: [{{name: KEY, value: {VALUE}}}]")
    )
    return compute


def loud(compute: Compute, api: ApiServer, line: str) -> Iterator[tuple[str, str]]:
    """What is printed on stdout and stderr, plainly and in a terminal."""
    for tty in (False, True):
        environ = {"TERM": "dumb"}
        steps = [lambda: controllers(api)] * 6
        result = compute(*shlex.split(line), "-vv", tty=tty, stdin="y\n" * 3, steps=steps, environ=environ)
        yield result.out, result.err


LINES = [line for path in leaves() for line in typed(path) if ": " not in line] + [
    f"deploy new --image=x --city=DFW --env=KEY={TYPED} --diff --no-wait",
    f"deploy shop --env=KEY={TYPED} --diff --dry-run",
    f"deploy shop --env=KEY={TYPED} --env=OTHER={TYPED} --diff --no-wait",
    "deploy shop --env=KEY- --diff --no-wait",
    "rollout undo shop --to-revision=1 -y --dry-run",
    "rollout undo shop -y",
    "status shop",
]


@pytest.mark.parametrize("line", list(dict.fromkeys(LINES)))
def test_no_command_prints_a_secret(
    line: str,
    secretive: Compute,
    api: ApiServer,
    pretended: Pretended,  # noqa: F811
    tmp_path: Path,
) -> None:
    pretended.up(tmp_path / "local")
    for out, err in loud(secretive, api, line):
        assert TOKEN not in out + err
        assert VALUE not in err
        assert TYPED not in err
        if not any(part in line for part in WHOLE):
            assert VALUE not in out
            assert TYPED not in out


def test_the_scripted_lines_are_really_printed(secretive: Compute, api: ApiServer) -> None:
    """Or else the test above proves nothing."""
    result = secretive("rollout", "history", "shop", "-vv")
    assert "GET /api/v1/namespaces/default/configmaps/" in result.err
    assert '"data":{"1":"(hidden)"' in result.err
    assert VALUE in api.get(CONFIG_MAP, "compute.datumapis.com-revision-history.shop").data["3"]


def test_a_secret_that_is_referred_to_is_named_and_never_read(api: ApiServer, compute: Compute, tmp_path: Path) -> None:
    reference = "{name: KEY, valueFrom: {secretKeyRef: {name: vault, key: k}}}"
    manifest = tmp_path / "workload.yaml"
    manifest.write_text(MANIFEST.replace("image: registry.example/mail:3", f"image: x, env: [{reference}]"))
    assert compute("deploy", "-f", str(manifest), "--no-wait").code == 0
    result = compute("workloads", "describe", "mail", "-vv")
    assert "KEY from secret vault" in result.out
    assert all("/secrets" not in seen.path for seen in api.requests)


@pytest.mark.parametrize("code", [401, 403, 500])
def test_a_server_that_repeats_the_token_is_not_quoted(api: ApiServer, compute: Compute, code: int) -> None:
    """Some proxies echo what they were sent."""
    body = encode({"kind": "Status", "code": code, "message": f"bad header Authorization: Bearer {TOKEN}"})
    api.rules += [Rule("GET", "/", lambda: Answer(code, body))] * 10
    result = compute("workloads", "-vv")
    assert TOKEN not in result.out + result.err


def test_a_password_and_a_plugin_that_fails_stay_out_of_errors(compute: Compute, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "http://127.0.0.1:1")
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", f"echo {VALUE}; exit 3"],
        "env": [{"name": "PASSWORD", "value": TYPED}],
        "interactiveMode": "Never",
    }
    text = path.read_text().replace('{"token": "s3cret"}', encode({"exec": plugin}).decode())
    path.write_text(text)
    result = compute("workloads", "--kubeconfig", str(path), "-vv")
    assert result.code == 7
    assert result.err.startswith("Error: ")
    for secret in (VALUE, TYPED):
        assert secret not in result.out + result.err


def test_a_helper_that_prints_its_token_and_fails_is_not_quoted(
    api: ApiServer, compute: Compute, tmp_path: Path
) -> None:
    helper = tmp_path / "datumctl"
    helper.write_text(f"#!/bin/sh\necho {VALUE}\necho no session >&2\nexit 1\n")
    helper.chmod(0o700)
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    result = compute("workloads", "-vv", environ=environ)
    assert (result.code, result.err) == (7, "Error: getting credentials: no session\n")


@pytest.mark.parametrize("printed", [f"update available\\n{VALUE}", f"{VALUE} two", f"{VALUE}\\377", f"{VALUE}\\033"])
def test_a_helper_that_prints_more_than_a_token_is_not_quoted(
    api: ApiServer, compute: Compute, tmp_path: Path, printed: str
) -> None:
    helper = tmp_path / "datumctl"
    helper.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    helper.chmod(0o700)
    environ = {"DATUM_API_HOST": api.url, "DATUM_CREDENTIALS_HELPER": str(helper), "DATUM_PROJECT": "demo"}
    result = compute("workloads", "-vv", environ=environ)
    assert (result.code, result.out) == (7, "")
    assert result.err == f"Error: getting credentials: {helper} printed something that is not a token\n"


@pytest.mark.parametrize(
    "words",
    [
        ["deplyo", "shop", "--env", f"KEY={VALUE}"],
        ["deplyo", "shop", "--env", f"-KEY={VALUE}"],
        ["deplyo", "shop", f"--env=KEY={VALUE}"],
        ["workloads", "deploy", "shop", "--image=x", f"KEY={VALUE}"],
        ["scale", "shop", f"KEY={VALUE}"],
        [f"KEY={VALUE}"],
        [f"={VALUE}"],
    ],
)
def test_a_value_that_was_typed_in_the_wrong_place_is_not_repeated(compute: Compute, words: list[str]) -> None:
    result = compute(*words)
    assert (result.code, result.out, VALUE in result.err) == (2, "", False)
