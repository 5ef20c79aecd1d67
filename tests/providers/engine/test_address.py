"""Where a container engine is looked for, and what is said when none is found."""

import asyncio
import hashlib
import socket
from pathlib import Path

import pytest

from datum_compute.kube.meta import encode
from datum_compute.providers.engine.address import Candidate, NoEngine, candidates, find_engine, read_file
from datum_compute.providers.engine.client import EngineClient
from datum_compute.providers.engine.interface import EngineAway

HOME = Path("/home/user")
USUAL = ["unix:///var/run/docker.sock", "unix:///run/podman/podman.sock"]
COLIMA = "unix:///home/user/.colima/docker.sock"


def files(
    current: str = "", contexts: dict[str, str] | None = None, folder: Path = HOME / ".docker"
) -> dict[Path, bytes]:
    found = {folder / "config.json": encode({"currentContext": current} if current else {})}
    for name, host in (contexts or {}).items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        found[folder / f"contexts/meta/{digest}/meta.json"] = encode({"Endpoints": {"docker": {"Host": host}}})
    return found


def addresses(environ: dict[str, str], tree: dict[Path, bytes] | None = None, flag: str = "") -> list[str]:
    return [candidate.address for candidate in candidates(environ, HOME, flag, (tree or {}).get)]


def test_the_order_of_the_search() -> None:
    environ = {
        "DOCKER_HOST": "unix:///a.sock",
        "CONTAINER_HOST": "unix:///b.sock",
        "XDG_RUNTIME_DIR": "/run/user/1000",
    }
    assert addresses(environ, files("colima", {"colima": COLIMA})) == [
        "unix:///a.sock",
        "unix:///b.sock",
        COLIMA,
        "unix:///run/user/1000/docker.sock",
        "unix:///run/user/1000/podman/podman.sock",
        *USUAL,
    ]


def test_an_address_that_was_asked_for_is_the_only_one() -> None:
    environ = {"DATUM_COMPUTE_ENGINE": "unix:///ours.sock", "DOCKER_HOST": "unix:///a.sock"}
    assert addresses(environ, flag="unix:///flag.sock") == ["unix:///flag.sock"]
    assert addresses(environ) == ["unix:///ours.sock"]


def test_no_address_is_tried_twice() -> None:
    assert addresses({"DOCKER_HOST": USUAL[0]}) == USUAL


@pytest.mark.parametrize("variable", ["DATUM_COMPUTE_ENGINE", "DOCKER_HOST", "CONTAINER_HOST"])
@pytest.mark.parametrize("host", ["tcp://10.0.0.1:2375", "ssh://user@build"])
def test_a_variable_with_another_machine_ends_the_search(variable: str, host: str) -> None:
    [candidate] = candidates({variable: host}, HOME, "", files("colima", {"colima": COLIMA}).get)
    assert candidate.last
    assert "only an engine on this machine" in candidate.problem
    assert variable in candidate.problem


@pytest.mark.parametrize("address", ["/run/podman.sock", "unix://relative", "npipe:////./pipe/docker", "unix://"])
def test_an_address_of_another_form_is_said_and_passed_over(address: str) -> None:
    first, *rest = candidates({"DOCKER_HOST": address}, HOME, "", files().get)
    assert first.problem == "DOCKER_HOST is not an address of the form unix:///PATH"
    assert [candidate.address for candidate in rest] == USUAL


@pytest.mark.parametrize(
    ("environ", "tree", "expected"),
    [
        ({}, files("default"), []),
        ({}, {}, []),
        ({}, {HOME / ".docker/config.json": b"{broken"}, []),
        ({}, {HOME / ".docker/config.json": b'{"currentContext": 7}'}, []),
        ({}, files("colima", {"colima": COLIMA}), [COLIMA]),
        ({"DOCKER_CONTEXT": "default"}, files("colima", {"colima": COLIMA}), []),
        ({"DOCKER_CONTEXT": "other"}, files("colima", {"colima": COLIMA, "other": "unix:///o.sock"}), ["unix:///o.sock"]),
        ({"DOCKER_CONFIG": "/etc/d"}, files("colima", {"colima": COLIMA}, Path("/etc/d")), [COLIMA]),
    ],
)  # fmt: skip
def test_the_context_of_docker(environ: dict[str, str], tree: dict[Path, bytes], expected: list[str]) -> None:
    assert addresses(environ, tree) == [*expected, *USUAL]


def test_a_context_that_is_gone_is_said() -> None:
    first = candidates({}, HOME, "", files("lost").get)[0]
    assert first.problem == "there is no context lost with an address in /home/user/.docker"


def test_only_a_context_named_by_a_variable_ends_the_search_with_another_machine() -> None:
    tree = files("far", {"far": "ssh://build"})
    assert addresses({}, tree) == ["ssh://build", *USUAL]
    assert addresses({"DOCKER_CONTEXT": "far"}, tree) == ["ssh://build"]


def test_the_first_that_answers_is_used() -> None:
    async def connect(path: str) -> EngineClient:
        if path == "/run/podman/podman.sock":
            return EngineClient(path)
        raise EngineAway("no container engine listens there")

    async def scenario() -> None:
        engine = await find_engine({}, Path("/nowhere"), connect=connect)
        assert engine.path == "/run/podman/podman.sock"
        await engine.close()

    asyncio.run(scenario())


def test_each_address_is_listed_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "file.sock").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "closed.sock"))
    environ = {"DOCKER_HOST": f"unix://{tmp_path}/closed.sock", "CONTAINER_HOST": "tcp://10.0.0.1:2375"}

    async def scenario() -> None:
        with pytest.raises(NoEngine) as failure:
            await find_engine(environ, tmp_path)
        assert str(failure.value) == (
            "no container engine answers; tried were\n"
            f"  unix://{tmp_path}/closed.sock (DOCKER_HOST): no container engine listens there\n"
            "  tcp://10.0.0.1:2375 (CONTAINER_HOST): only an engine on this machine can be used, by unix://PATH, and "
            "CONTAINER_HOST names another by tcp"
        )
        with pytest.raises(NoEngine) as failure:
            await find_engine({}, tmp_path, f"unix://{tmp_path}/none.sock")
        assert [attempt.answer for attempt in failure.value.attempts] == ["there is no such socket"]
        with pytest.raises(NoEngine) as failure:
            await find_engine({}, tmp_path, f"unix://{tmp_path}/file.sock")
        assert failure.value.attempts[0].source == "--engine"

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_counts_as_absent(tmp_path: Path) -> None:
    assert read_file(tmp_path / "none") is None
    assert read_file(tmp_path) is None


def test_a_candidate_knows_its_path() -> None:
    assert Candidate("", "unix:///a b.sock").path == "/a b.sock"
