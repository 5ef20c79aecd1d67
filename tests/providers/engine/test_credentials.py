"""Which credentials a pull is given, and that nothing else learns of them."""

import asyncio
import base64
import os
from pathlib import Path

import msgspec
import pytest

from datum_compute.kube.meta import Json, encode
from datum_compute.providers.engine import credentials as module
from datum_compute.providers.engine.credentials import registry_credentials, repository, run_helper

HUB = "https://index.docker.io/v1/"
LOGIN = base64.b64encode(b"user:pass:word").decode()
DOCKER = ".docker/config.json"

Helpers = dict[tuple[str, str], dict[str, str]]  # what a helper answers about a registry


def found(reference: str, home: Path, environ: dict[str, str] | None = None, helpers: Helpers | None = None) -> Json:
    async def ask(name: str, registry: str) -> bytes | None:
        answer = (helpers or {}).get((name, registry))
        return encode(answer) if answer is not None else None

    value = asyncio.run(registry_credentials(reference, environ or {}, home, ask=ask))
    return msgspec.json.decode(base64.urlsafe_b64decode(value)) if value else {}


def write(path: Path, config: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(config))
    return path


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("nginx", "docker.io/library/nginx"),
        ("nginx:1", "docker.io/library/nginx"),
        ("acme/web:1", "docker.io/acme/web"),
        ("docker.io/acme/web", "docker.io/acme/web"),
        ("index.docker.io/acme/web", "docker.io/acme/web"),
        ("quay.io/acme/web@sha256:00", "quay.io/acme/web"),
        ("registry:5000/web:1@sha256:00", "registry:5000/web"),
        ("localhost/web", "localhost/web"),
    ],
)
def test_the_repository_of_an_image(reference: str, expected: str) -> None:
    assert repository(reference) == expected


@pytest.mark.parametrize(
    ("reference", "key", "address"),
    [
        ("acme/web", HUB, HUB),
        ("acme/web", "docker.io", HUB),
        ("nginx", "https://index.docker.io/v1", HUB),
        ("quay.io/acme/web", "quay.io", "quay.io"),
        ("quay.io/acme/web", "https://quay.io/v2/", "quay.io"),
        ("quay.io/acme/web:1", "quay.io/acme", "quay.io"),
        ("registry:5000/web", "http://registry:5000", "registry:5000"),
    ],
)
def test_credentials_are_found_under_every_usual_key(tmp_path: Path, reference: str, key: str, address: str) -> None:
    write(tmp_path / DOCKER, {"auths": {key: {"auth": LOGIN}}})
    assert found(reference, tmp_path) == {"username": "user", "password": "pass:word", "serveraddress": address}


@pytest.mark.parametrize("reference", ["quay.io/acme/web", "acme/web", "evil-quay.io/x", "quay.io.evil/x"])
def test_credentials_go_to_no_other_registry(tmp_path: Path, reference: str) -> None:
    write(tmp_path / DOCKER, {"auths": {"quay.io/other": {"auth": LOGIN}}})
    assert found(reference, tmp_path) == {}
    write(tmp_path / DOCKER, {"auths": {"registry.example": {"auth": LOGIN}}, "credHelpers": {"a.example": "h"}})
    assert found(reference, tmp_path) == {}


def test_the_most_specific_entry_counts(tmp_path: Path) -> None:
    other = base64.b64encode(b"team:secret").decode()
    write(tmp_path / DOCKER, {"auths": {"quay.io": {"auth": LOGIN}, "quay.io/acme": {"auth": other}}})
    assert found("quay.io/acme/web", tmp_path)["username"] == "team"
    assert found("quay.io/acmes/web", tmp_path)["username"] == "user"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": LOGIN}, {"username": "user", "password": "pass:word"}),
        ({"username": "u", "password": "p"}, {"username": "u", "password": "p"}),
        ({"auth": LOGIN, "identitytoken": "t"}, {"identitytoken": "t"}),
        ({}, {}),
        ({"auth": "not base64!"}, {}),
        ({"auth": 7}, {}),
        ("text", {}),
        (None, {}),
    ],
)
def test_the_forms_of_an_entry(tmp_path: Path, entry: object, expected: Json) -> None:
    write(tmp_path / DOCKER, {"auths": {"quay.io": entry}})
    assert found("quay.io/web", tmp_path) == (expected | {"serveraddress": "quay.io"} if expected else {})


def test_the_order_of_files(tmp_path: Path) -> None:
    def config(user: str) -> Json:
        return {"auths": {"quay.io": {"username": user, "password": "p"}}}

    environ = {
        "REGISTRY_AUTH_FILE": str(write(tmp_path / "named.json", config("named"))),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "DOCKER_CONFIG": str(tmp_path / "docker"),
    }
    write(tmp_path / "run/containers/auth.json", config("podman"))
    write(tmp_path / "docker/config.json", config("docker"))
    assert found("quay.io/web", tmp_path, environ)["username"] == "named"
    (tmp_path / "named.json").write_text("{broken")
    assert found("quay.io/web", tmp_path, environ)["username"] == "podman"
    (tmp_path / "run/containers/auth.json").unlink()
    assert found("quay.io/web", tmp_path, environ)["username"] == "docker"
    assert found("quay.io/web", tmp_path) == {}


def test_helpers_are_asked_before_the_file(tmp_path: Path) -> None:
    write(
        tmp_path / DOCKER,
        {"credHelpers": {"quay.io": "own"}, "credsStore": "all", "auths": {"quay.io": {"auth": LOGIN}}},
    )
    own, common = {"Username": "own", "Secret": "s"}, {"Username": "all", "Secret": "s"}
    answers: Helpers = {
        ("own", "quay.io"): own,
        ("all", "quay.io"): common,
        ("all", HUB): {"Username": "<token>", "Secret": "t"},
    }
    assert found("quay.io/web", tmp_path, helpers=answers)["username"] == "own"
    assert found("nginx", tmp_path, helpers=answers) == {"identitytoken": "t", "serveraddress": HUB}
    del answers["own", "quay.io"]
    assert found("quay.io/web", tmp_path, helpers=answers)["username"] == "all"
    assert found("quay.io/web", tmp_path)["username"] == "user"


def helper(folder: Path, script: str) -> dict[str, str]:
    path = folder / "docker-credential-test"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


ANSWERS = 'read -r server; [ "$1" = get ] && echo "{\\"Username\\":\\"u\\",\\"Secret\\":\\"for $server\\"}"'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (ANSWERS, "for quay.io"),
        ("echo credentials not found; exit 1", None),
        ("echo no json", None),
    ],
)
def test_a_helper_is_run(tmp_path: Path, script: str, expected: str | None) -> None:
    environ = helper(tmp_path, script)
    write(tmp_path / DOCKER, {"credsStore": "test"})
    value = asyncio.run(registry_credentials("quay.io/web", environ, tmp_path))
    assert (msgspec.json.decode(base64.urlsafe_b64decode(value))["password"] if value else None) == expected


def test_a_helper_that_hangs_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = helper(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(module, "_HELPER_SECONDS", 0.5)
    assert asyncio.run(run_helper("test", "quay.io", environ)) is None
    process = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("name", ["../../bin/sh", "a b", "", "no-such-helper"])
def test_a_helper_that_cannot_be_run_is_no_credential(name: str) -> None:
    assert asyncio.run(run_helper(name, "quay.io", dict(os.environ))) is None
