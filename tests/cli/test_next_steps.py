"""Commands that this program prints reach what they are printed for, as they are printed, wherever they are typed."""

import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datum_compute.local import daemon
from tests.cli.conftest import Compute, kubeconfig
from tests.cli.server import ApiServer
from tests.cli.shell.test_completion import program


class Shell:
    """Types command lines in a directory of its own, with `compute` and a `datumctl` that runs it as its plugin."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.elsewhere = kubeconfig(folder / "elsewhere", f"http://127.0.0.1:{_unused_port()}", "elsewhere")
        self._environ = program(folder, {"DATUM_COMPUTE_LOCAL_DIR": str(folder / "usual")})
        datumctl = folder / "datumctl"
        datumctl.write_text(
            "#!/bin/sh\nshift\n"
            f"export DATUM_PLUGIN_API_VERSION=1 DATUM_PROJECT=real DATUM_API_HOST=http://127.0.0.1:{_unused_port()}\n"
            f'export DATUM_CREDENTIALS_HELPER=/bin/false\nexec "{sys.executable}" -m datum_compute.cli.main "$@"\n'
        )
        datumctl.chmod(0o755)

    def __call__(self, line: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env=self._environ | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def step(output: str, label: str) -> str:
    """The command line that is printed behind a label."""
    [line] = [line for line in output.splitlines() if line.strip().startswith(label)]
    return line.strip().removeprefix(label).strip()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """With one federation in the usual directory and one in another."""
    folder = tmp_path_factory.mktemp("next steps")  # a space in its name, as people have
    typed = Shell(folder)
    try:
        for line in ("compute local up", "compute local up --dir=other"):
            done = typed(line)
            assert done.returncode == 0, done.stderr
        yield typed
    finally:
        for name in ("usual", "other"):
            daemon.down(folder / name)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("compute local up", {}),
        ("compute local up --dir=other", {}),
        ("compute local up", {"KUBECONFIG": "elsewhere"}),
        ("compute local up", {"DATUM_API_HOST": "127.0.0.1:1", "DATUM_PROJECT": "real"}),
        ("compute local up", {"DATUM_API_HOST": "127.0.0.1:1", "DATUM_PROJECT": "demo"}),
        ("compute local up", {"DATUM_PROJECT": "real"}),
        ("datumctl compute local up", {}),
        ("datumctl compute local up --dir=other", {"KUBECONFIG": "elsewhere"}),
    ],
    ids=str,
)
def test_the_next_steps_of_local_up_work_as_printed(shell: Shell, line: str, environ: dict[str, str]) -> None:
    up = shell(line, **environ)
    assert up.returncode == 0, up.stderr
    deploy = step(up.stdout, "Deploy:")
    done = shell(f"{deploy} --no-wait", **environ)
    assert done.returncode == 0, done.stderr
    federation = shell.folder / ("other" if "--dir" in line else "usual") / "kubeconfig.yaml"
    seen = shell(f"compute workloads -o name --kubeconfig={shlex.quote(str(federation))}", **environ)
    assert (seen.stdout, seen.stderr) == ("workload/hello\n", "")
    exported = shell(f"{step(up.stdout, 'kubectl:')}; compute workloads -o name")
    assert exported.stdout == "workload/hello\n"
    hints = [line for line in done.stdout.splitlines() if line.startswith("Run '")]
    assert len(hints) == 1
    for hint in hints:
        command = hint.removeprefix("Run '").rpartition("'")[0]  # a path with a space has quotes in it
        followed = shell(f"{command} --no-watch", **environ)
        assert followed.returncode == 0, followed.stderr
    # For the next case: with a workload in both federations, a command that reaches the wrong one goes unnoticed.
    assert shell(f"compute destroy hello -y --wait --kubeconfig={shlex.quote(str(federation))}").returncode == 0


@pytest.mark.timeout(180)
def test_the_step_that_stops_it_stops_the_right_one_from_any_directory(shell: Shell) -> None:
    stop = step(shell("compute local up --dir=other").stdout, "Stop:")
    done = shell(f"cd / && {stop}")
    assert (done.returncode, done.stdout) == (0, "The local federation was stopped.\n")
    assert shell("compute local status").returncode == 0
    refused = shell("compute workloads --kubeconfig=other/kubeconfig.yaml --request-timeout=1s")
    assert refused.returncode == 1
    again = shell(f"cd / && {refused.stderr.splitlines()[-1]}")
    assert again.returncode == 0, again.stderr
    assert str(shell.folder / "other") in again.stdout


@pytest.mark.timeout(180)
@pytest.mark.parametrize("program", ["compute", "datumctl compute"])
def test_a_command_in_an_error_of_another_directory_is_for_that_one(shell: Shell, program: str) -> None:
    assert shell("compute local up --dir=other").returncode == 0
    refused = shell(f"{program} local up --dir=other --limit=instances=77")
    assert refused.returncode == 1
    stop = refused.stderr.partition("stop it with '")[2].rpartition("' to change that")[0]
    assert stop.startswith(f"{program} local down ")
    done = shell(f"cd / && {stop}")
    assert (done.returncode, done.stdout) == (0, "The local federation was stopped.\n"), done.stderr
    assert shell("compute local status").returncode == 0


def test_nothing_is_added_to_steps_that_work_without(shell: Shell) -> None:
    assert "--kubeconfig" not in shell("compute local up").stdout


def test_a_reset_that_is_to_be_confirmed_names_its_directory(shell: Shell) -> None:
    done = shell("compute local reset --dir=other")
    assert done.returncode == 2
    assert shlex.split(done.stderr.splitlines()[-1])[-2:] == ["-y", f"--dir={shell.folder / 'other'}"]


@pytest.mark.parametrize("by", ["KUBECONFIG", "flag"])
def test_an_unreachable_server_is_reported_with_the_context(compute: Compute, tmp_path: Path, by: str) -> None:
    path = kubeconfig(tmp_path / "dead", f"http://127.0.0.1:{_unused_port()}", "my-context")
    flags = [f"--kubeconfig={path}"] if by == "flag" else []
    result = compute("workloads", *flags, environ={"KUBECONFIG": str(path)} if by != "flag" else {})
    assert result.code == 1
    assert f'context "my-context" of {path}' in result.err.splitlines()[0]


def test_a_server_without_workloads_is_reported_with_the_context(
    api: ApiServer, compute: Compute, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path / "other", api.url, "kind-kind")
    result = compute("workloads", environ={"KUBECONFIG": str(path), "DATUM_COMPUTE_SKIP_ACCESS_CHECK": "1"})
    assert result.code == 13
    assert f'context "kind-kind" of {path}' in result.err


def test_an_unreachable_platform_is_named(compute: Compute, tmp_path: Path) -> None:
    helper = tmp_path / "helper"
    helper.write_text("#!/bin/sh\necho token\n")
    helper.chmod(0o755)
    environ = {"DATUM_API_HOST": f"http://127.0.0.1:{_unused_port()}", "DATUM_PROJECT": "demo", "KUBECONFIG": ""}
    result = compute("workloads", environ=environ | {"DATUM_CREDENTIALS_HELPER": str(helper)})
    assert result.code == 1
    assert "(DATUM_API_HOST)" in result.err.splitlines()[0]
