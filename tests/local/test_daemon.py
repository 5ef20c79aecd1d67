"""The local federation as a real process: started, stopped, killed, and started again."""

import asyncio
import os
import re
import resource
import select
import shutil
import signal
import socket
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from datum_compute.api.instance import INSTANCE
from datum_compute.api.quota import RESOURCE_CLAIM
from datum_compute.api.workload import WORKLOAD
from datum_compute.embedded.storage.log import Log
from datum_compute.kube.access.kubeconfig import Kubeconfig, load
from datum_compute.kube.client import Client
from datum_compute.kube.errors import ApiError
from datum_compute.kube.http import HttpTransport
from datum_compute.local import backups, daemon
from datum_compute.local.choice import Wish
from datum_compute.local.containers import recall, remember
from datum_compute.local.daemon import LocalError
from datum_compute.local.state import Engine, Paths, Running, hold, is_locked
from tests.scenarios.federation import is_ready, placement, template

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "federation"
    daemon.down(tmp_path / "federation")


def _backup(directory: Path, to: Path) -> None:
    backups.backup(directory, to, datetime.now(UTC))


def _talk(directory: Path, conversation: Callable[[Client], Awaitable[None]], context: str = "") -> None:
    """Runs a conversation with a plane over HTTPS, as any client would."""

    async def run() -> None:
        transport = HttpTransport(load([daemon.kubeconfig_path(directory)], context))
        try:
            await conversation(Client("test", transport))
        finally:
            await transport.close()

    asyncio.run(run())


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def _deploy(client: Client, replicas: int) -> None:
    spec = {"template": template(), "placements": [placement("main", ["DFW"], replicas)]}
    await client.create(WORKLOAD, WORKLOAD.body("web", "default") | {"spec": spec})


async def _until_ready(client: Client, replicas: int) -> None:
    async def ready() -> bool:
        return sum(map(is_ready, (await client.list(INSTANCE)).items)) == replicas

    await _until(ready)


def test_it_starts_once_stops_and_keeps_its_state(directory: Path) -> None:
    first = daemon.up(directory)
    assert daemon.up(directory) == first
    assert daemon.status(directory) == first

    async def deploy(client: Client) -> None:
        await _deploy(client, 1)
        await _until_ready(client, 1)

    _talk(directory, deploy)
    assert daemon.down(directory) is True
    assert daemon.status(directory) is None
    assert daemon.down(directory) is False

    second = daemon.up(directory)
    assert second.pid != first.pid
    assert second.port == first.port, "a kubeconfig stays good over a restart"

    async def still_there(client: Client) -> None:
        assert [item.name for item in (await client.list(WORKLOAD)).items] == ["web"]
        await _until_ready(client, 1)

    _talk(directory, still_there)


def test_a_process_that_takes_long_to_stop_is_reported(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = daemon.up(directory)
    os.kill(running.pid, signal.SIGSTOP)
    monkeypatch.setattr(daemon, "SILENT_SECONDS", 0.1)
    warnings: list[str] = []

    def tell(text: str) -> None:
        warnings.append(text)
        os.kill(running.pid, signal.SIGCONT)

    assert daemon.down(directory, tell) is True
    assert warnings == [f"Process {running.pid} takes long to stop; it is killed in 15 s, and nothing stored is lost."]


def test_its_files_are_for_their_owner_alone_and_its_kubeconfig_names_every_plane(directory: Path) -> None:
    daemon.up(directory)
    for path in [directory, *directory.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
    config = Kubeconfig.read([daemon.kubeconfig_path(directory)])
    assert config.current == "project-demo"
    assert sorted(config.contexts) == ["cell-ams", "cell-dfw", "cell-sin", "hub", "project-demo", "root"]


def test_two_concurrent_starts_run_one_federation(directory: Path) -> None:
    found: list[daemon.Running] = []
    threads = [threading.Thread(target=lambda: found.append(daemon.up(directory))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]


def test_no_engine_of_this_machine_is_touched_by_tests(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as engine:
        engine.bind(f"{folder}/engine.sock")
        engine.listen()
        engine.setblocking(False)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/engine.sock")
        running = daemon.up(directory)
        assert (running.instances, running.summary, running.engine) == ("simulated", "simulated", None)
        daemon.down(directory)
        daemon.reset(directory)
        with pytest.raises(BlockingIOError):
            engine.accept()


def test_another_choice_of_what_runs_instances_needs_a_restart(directory: Path) -> None:
    daemon.up(directory)
    assert daemon.up(directory, wish=Wish("auto")).instances == "simulated"
    with pytest.raises(LocalError, match=r"with simulated instances; stop it with 'compute local down'"):
        daemon.up(directory, wish=Wish("containers"))


def test_containers_of_an_engine_that_is_gone_hold_up_a_reset_unless_they_are_left(directory: Path) -> None:
    daemon.up(directory)
    daemon.down(directory)
    paths = Paths(directory)
    record = recall(paths).record
    gone = replace(record, instances="containers", address=f"unix://{directory}/gone.sock", engine="Podman 4.3.1")
    remember(paths, gone)
    messages: list[str] = []
    assert daemon.down(directory, messages.append) is False
    assert messages == [f"The containers were not stopped: {gone.address}: there is no such socket"]
    with pytest.raises(
        LocalError, match=r"so nothing was: unix://.*: there is no such socket; .* 'compute local reset --leave-"
    ):
        daemon.reset(directory)
    assert paths.log.exists()
    assert daemon.reset(directory, messages.append, leave=True)
    assert messages[1:] == [f"The containers were left behind; they have the label {gone.label}."]
    assert not paths.containers.exists()


def test_an_engine_that_is_named_through_a_link_needs_no_restart(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine("Podman 4.3.1", f"unix://{tmp_path}/podman.sock")
    found = Running(1, 2, "", str(directory), "demo", [], instances="containers", engine=engine)
    monkeypatch.setattr(daemon, "running", lambda directory: found)
    (tmp_path / "link.sock").symlink_to(tmp_path / "podman.sock")
    assert daemon.up(directory, wish=Wish("containers", f"unix://{tmp_path}/link.sock")) is found
    with pytest.raises(LocalError, match=r"with the engine at unix://.*/podman\.sock; stop it"):
        daemon.up(directory, wish=Wish("containers", f"unix://{tmp_path}/other.sock"))


def test_a_port_in_use_is_reported_and_changes_nothing(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalError, match=f"port {port} is in use; .*--port"):
            daemon.up(directory, port)
    assert daemon.status(directory) is None
    assert not Paths(directory).kubeconfig.exists()


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    with pytest.raises(LocalError, match=r"cannot write to .*: Not a directory; choose another directory with --dir"):
        daemon.up(in_the_way / "state")


def test_a_damaged_file_is_reported_and_left_unchanged(directory: Path) -> None:
    directory.mkdir()
    damaged = b"this is not a database, " * 100
    Paths(directory).log.write_bytes(damaged)
    with pytest.raises(LocalError, match=r"cannot be used: .*nothing was changed: .*compute local reset"):
        daemon.up(directory)
    assert Paths(directory).log.read_bytes() == damaged


def test_a_file_of_a_newer_version_is_reported_and_left_unchanged(directory: Path) -> None:
    directory.mkdir()
    with closing(sqlite3.connect(Paths(directory).log)) as database:
        database.executescript("create table log (id integer); pragma user_version = 99")
    before = Paths(directory).log.read_bytes()
    with pytest.raises(
        LocalError, match=r"written by a newer version of this program \(format 99, this one knows \d\)"
    ):
        daemon.up(directory)
    assert Paths(directory).log.read_bytes() == before


def test_a_file_in_use_by_another_process_is_reported(directory: Path) -> None:
    directory.mkdir()
    log = Log(Paths(directory).log)
    try:
        with pytest.raises(LocalError, match=rf"is in use by process {os.getpid()}; stop that one first"):
            daemon.up(directory)
    finally:
        log.close()


def test_a_full_disk_at_the_start_is_reported(directory: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(LocalError) as error:
            daemon.up(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search(r"(cannot be used|cannot write to) ?.*: ", str(error.value))
    assert daemon.up(directory).pid  # and with room it starts as if nothing had been


# Backups


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Runs lines in every Python process that is started from now on, before the program; `crash` notes when it was
    called in the file that is given back, and raises."""

    def start_with(lines: str) -> Path:
        moment = tmp_path / "crashed"
        folder = tmp_path / "defects"
        folder.mkdir()
        crash = f"""
import os, sys, time, pathlib
def crash(*arguments, **named):
    pathlib.Path({str(moment)!r}).write_text(str(time.monotonic()))
    raise ZeroDivisionError("a defect nobody foresaw")
async def crash_later(*arguments, **named):
    crash()
"""
        (folder / "sitecustomize.py").write_text(crash + lines)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        return moment

    return start_with


@pytest.mark.parametrize(
    "defect",
    [
        "import datum_compute.embedded.engine as m; m.Engine.run = crash_later",
        "import datum_compute.runtime.fleet as m; m.Fleet.run = crash_later",
        "import datum_compute.local.federation as m; m.Federation.seed = crash_later",
        "import datum_compute.embedded.engine as m; m.Engine.__init__ = crash",
    ],
    ids=["in the background", "in a controller's background", "on the way up", "at once"],
)
def test_a_crash_at_the_start_is_reported_at_once_with_its_reason(
    directory: Path, broken: Callable[[str], Path], defect: str
) -> None:
    moment = broken(defect)
    with pytest.raises(LocalError, match="a defect nobody foresaw") as error:
        daemon.up(directory)
    assert time.monotonic() - float(moment.read_text()) < daemon.START_SECONDS / 2, "it waited for a dead process"
    assert str(Paths(directory).output) in str(error.value), "and where there is more"
    assert len(str(error.value).splitlines()) == 1
    assert "ZeroDivisionError" in Paths(directory).output.read_text()
    assert not is_locked(Paths(directory).lock)


def test_a_program_that_cannot_be_loaded_is_reported(directory: Path, broken: Callable[[str], Path]) -> None:
    broken("sys.modules['cryptography'] = None")
    with pytest.raises(LocalError, match=r"ended while it started \(ModuleNotFoundError: import of cryptography "):
        daemon.up(directory)


def test_a_process_killed_at_the_start_is_reported(directory: Path, broken: Callable[[str], Path]) -> None:
    broken("import datum_compute.embedded.engine as m; m.Engine.__init__ = lambda *a, **k: os.kill(os.getpid(), 9)")
    with pytest.raises(LocalError, match="the federation ended while it started; see "):
        daemon.up(directory)


@pytest.mark.parametrize(("pause", "ready"), [(40.0, True), (70.0, False)])
def test_a_start_may_take_long_while_there_are_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float, ready: bool
) -> None:
    read, write = os.pipe()
    pieces, now = [b" ", b" ", b" ", b'{"error": "no room"}'], 0.0

    def wait(files: list[int], *others: object) -> tuple[list[int], list[int], list[int]]:
        """Each piece comes after a pause, if anybody waits for so long."""
        nonlocal now
        now += pause
        if pause > others[-1]:  # type: ignore[operator]
            return [], [], []
        if pieces:
            os.write(write, pieces.pop(0))
        else:
            os.close(write)
        return files, [], []

    monkeypatch.setattr(select, "select", wait)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    try:
        report = daemon._read_report(read, Paths(tmp_path), 0)
    finally:
        os.close(read)
        if not ready:
            os.close(write)
    assert report.error.partition(";")[0] == ("no room" if ready else "the federation was not ready after 60 s")


def test_an_error_after_the_start_is_only_in_the_log(directory: Path, broken: Callable[[str], Path]) -> None:
    """The pipe to who started it is closed by then, and its number is another file's."""
    broken(f"""
import asyncio, datum_compute.embedded.engine as m
async def crash_in_time(self):
    while not os.path.exists({str(directory / "running.json")!r}):
        await asyncio.sleep(0.01)
    raise OSError(28, "No space left on device")
m.Engine._housekeeping = crash_in_time
""")
    daemon.up(directory)

    async def ended() -> bool:
        return not is_locked(Paths(directory).lock)

    asyncio.run(_until(ended))
    assert "No space left on device" in Paths(directory).output.read_text()
    with closing(sqlite3.connect(Paths(directory).log)) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_process_that_can_no_longer_write_ends_with_its_reason_and_loses_nothing(
    directory: Path, broken: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(f"""
import sqlite3, datum_compute.embedded.storage.log as m
append = m.Log.append
def damaged(self, rows):
    if os.path.exists({str(directory / "running.json")!r}):
        raise sqlite3.DatabaseError("database disk image is malformed")
    append(self, rows)
m.Log.append = damaged
""")
    daemon.up(directory)

    async def refused(client: Client) -> None:
        with pytest.raises(ApiError):
            await _deploy(client, 1)

    async def ended() -> bool:
        return not is_locked(Paths(directory).lock)

    _talk(directory, refused)
    asyncio.run(_until(ended))
    assert "no further change can be stored: database disk image is malformed" in Paths(directory).output.read_text()
    monkeypatch.delenv("PYTHONPATH")
    daemon.up(directory)

    async def deployed(client: Client) -> None:
        await _deploy(client, 1)
        await _until_ready(client, 1)

    _talk(directory, deployed)


def test_a_backup_taken_while_it_runs_brings_back_that_moment(directory: Path, tmp_path: Path) -> None:
    daemon.up(directory)

    async def deploy(client: Client) -> None:
        await _deploy(client, 1)
        await _until_ready(client, 1)

    async def remove(client: Client) -> None:
        await client.delete(WORKLOAD, "web", "default")

    _talk(directory, deploy)
    _backup(directory, tmp_path / "backup.db")
    assert (tmp_path / "backup.db").stat().st_mode & 0o777 == 0o600
    _talk(directory, remove)
    daemon.reset(directory)
    shutil.copyfile(tmp_path / "backup.db", Paths(directory).log)
    daemon.up(directory)

    async def is_back(client: Client) -> None:
        assert [item.name for item in (await client.list(WORKLOAD)).items] == ["web"]
        await _until_ready(client, 1)

    _talk(directory, is_back)


def test_a_backup_that_cannot_be_made_says_why_and_leaves_nothing(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"there is nothing to back up in .*compute local up"):
        _backup(directory, tmp_path / "backup.db")
    directory.mkdir()
    Log(Paths(directory).log).close()
    _backup(directory, tmp_path / "backup.db")
    made = (tmp_path / "backup.db").read_bytes()
    with pytest.raises(LocalError, match=r"backup\.db exists already; choose another name"):
        _backup(directory, tmp_path / "backup.db")
    assert (tmp_path / "backup.db").read_bytes() == made
    with pytest.raises(LocalError, match=r"cannot write to .*: No such file or directory"):
        _backup(directory, tmp_path / "nowhere" / "backup.db")
    Paths(directory).log.write_bytes(b"this is not a database, " * 100)
    with pytest.raises(LocalError, match=r"the backup was not made: .*federation\.db cannot be used: "):
        _backup(directory, tmp_path / "second.db")
    assert not (tmp_path / "second.db").exists()


def test_reset_removes_everything_it_stored(directory: Path) -> None:
    daemon.up(directory)
    backup = directory / "federation.db.backup"
    _backup(directory, backup)
    assert daemon.reset(directory)
    assert list(directory.iterdir()) == [backup]  # which is not its own


def test_reset_returns_whether_anything_was_stored(directory: Path) -> None:
    assert not daemon.reset(directory)
    with pytest.raises(LocalError):
        backups.restore(directory, "unknown", datetime.now(UTC))
    assert not daemon.reset(directory), "a restore that failed stored nothing"
    daemon.up(directory)
    daemon.down(directory)
    assert daemon.reset(directory)
    assert not daemon.reset(directory)


def test_a_federation_that_is_started_during_a_reset_loses_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(directory)
    directory.mkdir()
    paths.log.write_bytes(b"state")
    locks = []

    def clean(*arguments: object) -> daemon.Outcome:
        locks.append(hold(paths.lock))
        return daemon.Outcome()

    monkeypatch.setattr(daemon, "_clean", clean)
    try:
        with pytest.raises(LocalError, match=r"a federation has been started in .* meanwhile, so nothing was removed"):
            daemon.reset(directory)
    finally:
        os.close(locks[0])
    assert paths.log.exists()


def test_no_federation_can_start_while_a_reset_removes_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(directory)
    paths.credentials.mkdir(parents=True)
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: seen.append((path, is_locked(paths.lock))))
    assert daemon.reset(directory)
    assert seen == [(paths.credentials, True)]
    assert not paths.lock.exists()


def test_a_federation_killed_during_a_rollout_completes_it_after_a_restart(directory: Path) -> None:
    running = daemon.up(directory)

    async def start_a_rollout(client: Client) -> None:
        await _deploy(client, 5)
        await _until_ready(client, 2)

    _talk(directory, start_a_rollout)
    os.kill(running.pid, signal.SIGKILL)
    lock = Paths(directory).lock

    async def dead() -> bool:
        return not is_locked(lock)

    asyncio.run(_until(dead))
    assert daemon.status(directory) is None
    daemon.up(directory)

    async def finished(client: Client) -> None:
        await _until_ready(client, 5)
        names = sorted(item.name for item in (await client.list(INSTANCE)).items)
        assert names == [f"web-main-dfw-{ordinal}" for ordinal in range(5)]
        claims = sorted(item.name for item in (await client.list(RESOURCE_CLAIM)).items)
        assert claims == [f"instance-{name}" for name in names], "nothing lost, nothing double"

    _talk(directory, finished)

    async def in_the_cell(client: Client) -> None:
        names = sorted(item.name for item in (await client.list(INSTANCE)).items)
        assert names == [f"web-main-dfw-{ordinal}" for ordinal in range(5)]

    _talk(directory, in_the_cell, "cell-dfw")
