"""The plugin as one file, on a machine that has Python and nothing else."""

import ast
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from datum_compute.local import daemon
from tests.cli.conftest import World, kubeconfig
from tests.cli.log_store import LogStore, frame
from tools import boot, bundle


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; tests that change it work on a copy."""
    path = tmp_path_factory.mktemp("built") / "datumctl-compute"
    assert bundle.main([str(path)]) == 0
    return path


class Machine:
    """A home folder, and a PATH with nothing but the interpreter outside of any environment."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.programs = folder / "bin"
        self.home.mkdir()
        self.programs.mkdir()
        (self.programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")

    @property
    def unpacked(self) -> list[Path]:
        return sorted((self.home / ".cache" / "datum-compute").glob("*"))

    def __call__(self, file: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        around = {"PATH": str(self.programs), "HOME": str(self.home)} | environ
        return subprocess.run([file, *words], env=around, capture_output=True, text=True, check=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_manifest_is_printed_without_unpacking_anything(file: Path, machine: Machine) -> None:
    done = machine(file, "--plugin-manifest")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["name"] == "compute"
    assert machine.unpacked == []


def test_the_plugin_needs_nothing_but_python(file: Path, machine: Machine, world: World, tmp_path: Path) -> None:
    world.settled()
    path = kubeconfig(tmp_path / "kubeconfig", world.api.project_url())
    done = machine(file, "workloads", "-o", "yaml", KUBECONFIG=str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "name: shop" in done.stdout


def test_the_plugin_follows_logs(file: Path, machine: Machine, world: World, tmp_path: Path) -> None:
    """Until the server says that this reader may not read any more."""
    world.settled()
    store = world.api.logs = LogStore()
    store.add(time.time_ns(), "shop-default-ams-0", "hello")
    store.tails = [[frame(*store.lines), lambda: world.api.answer("GET", "/tail", 403)]]
    path = kubeconfig(tmp_path / "kubeconfig", world.api.project_url())
    done = machine(file, "logs", "shop", "-f", "--no-timestamps", KUBECONFIG=str(path))
    assert (done.returncode, done.stdout) == (7, "[default-ams-0] hello\n")


def test_the_plugin_is_unpacked_once_and_for_its_user_only(file: Path, machine: Machine) -> None:
    assert machine(file, "--version").stdout == "datumctl compute 0.1.0\n"
    [folder] = machine.unpacked
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = folder.stat().st_ctime_ns, folder.stat().st_ino
    assert machine(file, "--version").returncode == 0
    assert machine.unpacked == [folder]
    assert (folder.stat().st_ctime_ns, folder.stat().st_ino) == before


def test_files_that_others_could_have_changed_are_not_run(file: Path, machine: Machine) -> None:
    machine(file, "--version")
    [folder] = machine.unpacked
    folder.chmod(0o777)
    done = machine(file, "--version")
    assert done.returncode == 1
    assert done.stderr == f"Error: others can change {folder}, so it is not used; remove it and try again\n"


def test_an_unwritable_path_is_named(file: Path, machine: Machine) -> None:
    blocked = machine.home / "file"
    blocked.touch()
    done = machine(file, "--version", XDG_CACHE_HOME=str(blocked))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot unpack into {blocked}/datum-compute: ")
    assert done.stderr.count("\n") == 1


def test_concurrent_first_starts_both_work(file: Path, machine: Machine) -> None:
    environ = {"PATH": str(machine.programs), "HOME": str(machine.home)}
    running = [subprocess.Popen([file, "--version"], env=environ, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[0] for process in running] == [b"datumctl compute 0.1.0\n"] * 3
    assert len(machine.unpacked) == 1


def test_a_file_for_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, machine: Machine, tmp_path: Path
) -> None:
    monkeypatch.setattr(boot, "this_machine", lambda: "cpython-399 plan9 vax")
    other = tmp_path / "datumctl-compute"
    other.write_bytes(bundle.archive(_few()))
    other.chmod(0o755)
    done = machine(other, "--version")
    assert done.returncode == 1
    here = f"python3.{sys.version_info.minor} on {sys.platform} {os.uname().machine}"
    assert done.stderr == (
        f"Error: this file is made for python3.99 on plan9 vax, and this is {here}; "
        "install python3.99, or take the file that is made for this machine\n"
    )


def test_the_launcher_runs_on_every_python_that_it_refuses() -> None:
    tree = ast.parse(Path(boot.__file__).read_text(), feature_version=(3, 6))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & {"removeprefix", "removesuffix", "readlink", "is_relative_to", "hardlink_to"}


def _older() -> list[Path]:
    """Interpreters too old for this program that are installed beside the one that runs here."""
    found = {path.name: path for path in sorted(Path(sys.base_prefix).parent.glob("3.*/bin/python3.?"))}
    return list(found.values())


@pytest.mark.parametrize("python", _older(), ids=lambda path: str(path.name))
def test_an_older_python_gets_an_error_message(file: Path, machine: Machine, python: Path) -> None:
    (machine.programs / "python3").unlink()
    (machine.programs / "python3").symlink_to(python)
    done = machine(file, "--version")
    wanted = f"python3.{sys.version_info.minor}"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: this file is made for {wanted} on {sys.platform} {os.uname().machine}, and this is "
        f"{python.name} on {sys.platform} {os.uname().machine}; install {wanted}, or take the file that is made for "
        "this machine\n"
    )


@pytest.mark.parametrize("python", _older(), ids=lambda path: str(path.name))
def test_an_older_python_hands_over_to_the_right_one(file: Path, machine: Machine, python: Path) -> None:
    (machine.programs / "python3").rename(machine.programs / f"python3.{sys.version_info.minor}")
    (machine.programs / "python3").symlink_to(python)
    assert machine(file, "--version").stdout == "datumctl compute 0.1.0\n"


def test_the_same_content_gives_the_same_file() -> None:
    assert bundle.archive(_few()) == bundle.archive(dict(reversed(_few().items())))


def _few() -> dict[str, bytes]:
    """Of this package only what starts the file."""
    return {f"datum_compute/{name}": (bundle._ROOT / name).read_bytes() for name in bundle._AT_HAND}


def test_datumctl_knows_it_by_a_bare_name(file: Path, machine: Machine) -> None:
    managed = machine.home / ".datumctl" / "plugins" / "compute"
    managed.parent.mkdir(parents=True)
    os.link(file, managed)
    assert machine(managed, "--version").stdout == "datumctl compute 0.1.0\n"


@pytest.mark.timeout(120)
def test_the_plugin_contains_the_whole_federation(file: Path, machine: Machine, tmp_path: Path) -> None:
    directory = tmp_path / "federation"
    try:
        up = machine(file, "local", "up", "--instances=simulated", "--dir", str(directory))
        assert up.returncode == 0, up.stderr
        done = machine(file, "cities", "-o", "name", DATUM_COMPUTE_LOCAL_DIR=str(directory))
        assert (done.returncode, done.stdout.split()) == (0, ["city/AMS", "city/DFW", "city/SIN"])
    finally:
        daemon.down(directory)
