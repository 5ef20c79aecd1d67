"""The local verbs with a fake daemon; the real one has its own tests."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from datum_compute.api.quota import INSTANCES, MEMORY, VCPUS
from datum_compute.local import backups, census, containers, daemon, projects, state
from datum_compute.local.backups import Backup, Restored
from datum_compute.local.census import Census, EngineState
from datum_compute.local.choice import Wish
from datum_compute.local.projects import ProjectState
from datum_compute.local.settings import DEFAULT_CITIES, Settings
from datum_compute.local.state import Engine, LocalError, Running
from tests.cli.conftest import NOW, Compute, FakeClock

ADDRESS = "unix:///run/podman/podman.sock"


class Pretended:
    """Records its calls."""

    def __init__(self) -> None:
        self.running: Running | None = None
        self.calls: list[tuple[object, ...]] = []
        self.wishes: list[Wish] = []
        self.error = ""

    def up(
        self,
        directory: Path,
        port: int = 0,
        wanted: Settings = Settings(),  # noqa: B008  (frozen)
        wish: Wish = Wish(),  # noqa: B008  (frozen)
    ) -> Running:
        self.calls.append(("up", directory, port, wanted))
        self.wishes.append(wish)
        if self.error:
            raise LocalError(self.error)
        cities = wanted.over(Settings(DEFAULT_CITIES)).cities
        limits = {INSTANCES: 10, VCPUS: 40_000, MEMORY: 81_920} | wanted.limits
        url = "https://127.0.0.1:6443"
        self.running = Running(77, 6443, url, str(directory), "demo", [*cities], cities, limits, 8088)
        if wish.instances == "containers":
            summary, engine = "containers of Podman 4.3.1; a city is a name here", Engine("Podman 4.3.1", ADDRESS)
            self.running = replace(self.running, instances="containers", summary=summary, engine=engine)
        else:
            self.running = replace(self.running, summary="simulated (no container engine answers)")
        return self.running

    def down(self, directory: Path, tell: Callable[[str], None]) -> bool:
        self.calls.append(("down", directory))
        found, self.running = self.running, None
        return found is not None

    def reset(self, directory: Path, tell: Callable[[str], None], *, leave: bool = False) -> bool:
        self.calls.append(("reset", directory, "leave") if leave else ("reset", directory))
        found, self.running = self.running, None
        return found is not None

    def backup(self, directory: Path, path: Path | None, now: datetime) -> Path:
        self.calls.append(("backup", directory, path))
        return path or state.Paths(directory).backups / "2026-11-02T120000Z.db"

    def backups(self, directory: Path) -> list[Backup]:
        found = [("replaced-2026-11-02T110000Z", 3600, 540_672), ("2026-11-02T100000Z", 7200, 397_312)]
        folder = state.Paths(directory).backups
        return [Backup(name, folder / f"{name}.db", NOW - timedelta(seconds=age), size) for name, age, size in found]

    def restore(self, directory: Path, wanted: str, now: datetime) -> Restored:
        self.calls.append(("restore", directory, wanted))
        if self.error:
            raise LocalError(self.error)
        folder = state.Paths(directory).backups
        return Restored(folder / "2026-11-02T100000Z.db", folder / "replaced-2026-11-02T120000Z.db")

    def projects(self, running: Running, seconds: float) -> list[ProjectState]:
        return [ProjectState("demo", "Ready"), ProjectState("other", "Starting")]

    def census(self, running: Running, seconds: float) -> Census:
        if running.engine is None:
            return Census(running.summary, None, 0, 0)
        return Census(running.summary, EngineState(running.engine.name, running.engine.address, ("CPU",)), 3, 4)

    def find(self, directory: Path) -> Running | None:
        return self.running


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    fake = Pretended()
    for module, names in (
        (daemon, ("up", "down", "reset")),
        (backups, ("backup", "backups", "restore")),
        (projects, ("projects",)),
        (census, ("census",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, getattr(fake, name))
    monkeypatch.setattr(state, "running", fake.find)
    return fake


@pytest.fixture
def compute(clock: FakeClock, pretended: Pretended) -> Compute:
    return Compute(clock, {})


def test_up_prints_what_runs_and_the_next_steps(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    where = tmp_path / "local"
    result = compute("local", "up")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "The local federation is running at https://127.0.0.1:6443 (process 77).\n"
        "  Project:    demo\n"
        "  Cities:     DFW, AMS, SIN\n"
        "  Limits:     10 instances, 40 vCPUs, 80 GiB of memory\n"
        "  Instances:  simulated (no container engine answers)\n"
        "  Workloads:  http://NAME.localhost:8088/\n"
        f"  State:      {where}\n"
        "\n"
        "  Instances are simulated: no container runs, and the tag of an image decides whether it works\n"
        "  (:crashing does not; see 'compute local up --help').\n"
        "\n"
        "  Next steps:\n"
        "    Deploy:    compute deploy hello --image=registry.example/hello:1 --city=DFW,AMS --min=2\n"
        f"    kubectl:   export KUBECONFIG={state.kubeconfig_path(where)}\n"
        "    Stop:      compute local down\n"
    )
    assert pretended.calls == [("up", where, 0, Settings())]


def test_in_containers_the_hint_names_an_image_that_can_be_pulled(compute: Compute, pretended: Pretended) -> None:
    result = compute("local", "up", "--instances=containers")
    assert "  Instances:  containers of Podman 4.3.1; a city is a name here" in result.lines
    assert "    Deploy:    compute deploy hello --image=docker.io/library/nginx:alpine --port=80 --city=DFW,AMS" in (
        result.lines
    )
    assert "simulated" not in result.out
    status = compute("local", "status")
    assert f"  Engine:     {ADDRESS}; 3 of 4 instances running; limits of CPU are not enforced" in status.lines
    document = json.loads(compute("local", "status", "-o", "json").out)
    assert document["instances"] == "containers"
    assert document["engine"] == {"name": "Podman 4.3.1", "address": ADDRESS, "unenforced": ["CPU"]}


@pytest.mark.parametrize(
    ("flags", "environ", "wish"),
    [
        ([], {}, Wish()),
        (["--instances=Containers"], {}, Wish("containers")),
        ([], {"DATUM_COMPUTE_INSTANCES": "simulated"}, Wish("simulated")),
        (["--instances=auto"], {"DATUM_COMPUTE_INSTANCES": "simulated"}, Wish("auto")),
        ([f"--engine={ADDRESS}"], {}, Wish("", ADDRESS)),
        ([], {"DATUM_COMPUTE_ENGINE": ADDRESS}, Wish("", ADDRESS)),
        (["--instances=simulated", "--leave-containers"], {}, Wish("simulated", "", True)),
    ],
)
def test_what_runs_the_instances_is_chosen_by_flags_or_variables(
    compute: Compute, pretended: Pretended, flags: list[str], environ: dict[str, str], wish: Wish
) -> None:
    assert compute("local", "up", *flags, environ=environ).code == 0
    assert pretended.wishes == [wish]


@pytest.mark.parametrize(
    ("flags", "environ", "sentence"),
    [
        (["--instances=vms"], {}, '--instances: unknown value "vms"; use auto, containers or simulated'),
        (
            [],
            {"DATUM_COMPUTE_INSTANCES": "vms"},
            'DATUM_COMPUTE_INSTANCES: unknown value "vms"; use auto, containers or simulated',
        ),
        (
            ["--engine=/run/docker.sock"],
            {},
            '--engine: "/run/docker.sock" is not the address of an engine; write it like unix:///run/docker.sock',
        ),
        (
            [],
            {"DATUM_COMPUTE_ENGINE": "tcp://10.0.0.1"},
            'DATUM_COMPUTE_ENGINE: "tcp://10.0.0.1" is not the address of an engine; write it like '
            "unix:///run/docker.sock",
        ),
        (
            ["--leave-containers"],
            {},
            "--leave-containers needs --instances=simulated: otherwise the containers are needed",
        ),
        (
            [f"--engine={ADDRESS}", "--instances=simulated"],
            {},
            "--engine cannot be combined with --instances=simulated",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused(
    compute: Compute, pretended: Pretended, flags: list[str], environ: dict[str, str], sentence: str
) -> None:
    result = compute("local", "up", *flags, environ=environ)
    assert (result.code, result.out, result.err) == (2, "", f"Error: {sentence}\n")
    assert pretended.calls == []


def test_containers_are_left_behind_by_a_reset_only_when_asked(
    compute: Compute, pretended: Pretended, tmp_path: Path
) -> None:
    compute("local", "reset", "-y", "--leave-containers")
    assert pretended.calls == [("reset", tmp_path / "local", "leave")]


def test_commands_in_errors_and_notes_are_those_that_the_user_types(compute: Compute, pretended: Pretended) -> None:
    pretended.error = "away; give up with 'compute local up --instances=simulated --leave-containers'"
    result = compute("local", "up", "--dir=/some/where", program="datumctl compute")
    expected = "'datumctl compute local up --instances=simulated --leave-containers --dir=/some/where'"
    assert result.err == f"Error: away; give up with {expected}\n"


def test_another_directory_and_port(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    result = compute("local", "up", "--dir", str(tmp_path / "x"), "--port=7000")
    assert pretended.calls == [("up", tmp_path / "x", 7000, Settings())]
    assert f"    Stop:      compute local down --dir={tmp_path}/x" in result.lines


def test_errors_of_the_daemon_are_shown_in_its_words(compute: Compute, pretended: Pretended) -> None:
    pretended.error = "port 7000 is in use; choose another one with --port"
    result = compute("local", "up", "--port=7000")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: port 7000 is in use; choose another one with --port\n"


def test_down_once_and_again(compute: Compute, pretended: Pretended) -> None:
    compute("local", "up")
    assert compute("local", "down").out == "The local federation was stopped.\n"
    again = compute("local", "down")
    assert (again.code, again.out) == (0, "The local federation is not running.\n")


def test_status(compute: Compute, pretended: Pretended) -> None:
    compute("local", "up")
    assert "  Projects:   demo, other (starting)" in compute("local", "status").lines
    document = json.loads(compute("local", "status", "-o", "json").out)
    assert document["port"] == 6443
    assert document["projects"] == ["demo", "other"]
    many = ",".join(f"C{number:02}" for number in range(30))
    compute("local", "up", f"--city={many}")
    assert (
        "  Cities:     C00, C01, C02, C03, C04, C05, C06, C07, C08, C09 and 20 more" in compute("local", "status").lines
    )


def test_kubeconfig_is_one_path_and_nothing_else(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    compute("local", "up")
    assert compute("local", "kubeconfig").out == f"{state.kubeconfig_path(tmp_path / 'local')}\n"


@pytest.mark.parametrize("verb", ["status", "kubeconfig"])
def test_not_running_is_an_error_with_the_command_to_start(compute: Compute, pretended: Pretended, verb: str) -> None:
    result = compute("local", verb, "--dir=/some/where")
    assert (result.code, result.out) == (1, "")
    assert result.err == "Error: the local federation is not running\n\ncompute local up --dir=/some/where\n"


def test_reset_says_that_backups_are_kept(
    compute: Compute, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "Its backups are kept. Run 'compute local restore --dir=/some/where' to list them."
    assert compute("local", "reset", "-y", "--dir=/some/where").lines[1:] == [note]
    monkeypatch.setattr(backups, "backups", lambda directory: [])
    assert compute("local", "reset", "-y").lines[1:] == []


def test_reset_asks_first(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    assert compute("local", "reset").code == 2
    assert compute("local", "reset", tty=True, stdin="n\n").out == "Aborted.\n"
    assert pretended.calls == []
    assert compute("local", "reset", tty=True, stdin="y\n").code == 0
    assert compute("local", "reset", "-y").code == 0
    assert pretended.calls == [("reset", tmp_path / "local")] * 2


@pytest.mark.parametrize(("words", "what"), [([], " and all its containers"), (["--leave-containers"], "")])
def test_reset_says_before_that_containers_go_too(
    compute: Compute, pretended: Pretended, tmp_path: Path, words: list[str], what: str
) -> None:
    paths = state.Paths(tmp_path / "local")
    record = containers.recall(paths).record
    paths.directory.mkdir()
    containers.remember(paths, replace(record, instances="containers", address=ADDRESS))
    question = compute("local", "reset", *words, tty=True, stdin="n\n").err
    assert question.startswith(f"This will remove everything in {paths.directory} except backups{what}. Continue?")


def test_reset_once_and_again(compute: Compute) -> None:
    compute("local", "up")
    assert compute("local", "reset", "-y").lines[0] == "The local federation was removed."
    again = compute("local", "reset", "-y")
    assert (again.code, again.lines[0]) == (0, "There is no local federation to remove.")


def test_a_backup_goes_to_the_file_that_is_named(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    file = tmp_path / "monday.db"
    result = compute("local", "backup", str(file))
    assert (result.code, result.out) == (
        0,
        f"The local federation was copied to {file}.\nRun 'compute local restore {file}' to go back to it.\n",
    )
    assert compute("local", "backup", "-q").out == (
        f"The local federation was copied to {tmp_path}/local/backups/2026-11-02T120000Z.db.\n"
    )
    assert pretended.calls == [("backup", tmp_path / "local", file), ("backup", tmp_path / "local", None)]


def test_backups_are_listed_and_one_is_restored(compute: Compute, pretended: Pretended, tmp_path: Path) -> None:
    assert compute("local", "restore").lines == [
        "NAME                          AGE   SIZE      MADE BY",
        "replaced-2026-11-02T110000Z   1h    528 KiB   a restore",
        "2026-11-02T100000Z            2h    388 KiB   backup",
        "",
        "Run 'compute local restore NAME' to go back to one.",
    ]
    assert compute("local", "restore", "-o", "name").lines == ["replaced-2026-11-02T110000Z", "2026-11-02T100000Z"]
    assert json.loads(compute("local", "restore", "-o", "json").out)[1]["size"] == 397_312
    folder = tmp_path / "local" / "backups"
    assert compute("local", "restore", "2026-11-02T10").lines == [
        f"The local federation was restored from {folder}/2026-11-02T100000Z.db.",
        f"The state before is kept as {folder}/replaced-2026-11-02T120000Z.db.",
        "Run 'compute local up' to start it.",
    ]
    assert pretended.calls == [("restore", tmp_path / "local", "2026-11-02T10")]


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--city=,", "--city: name at least one city, like --city=DFW,FRA=Frankfurt"),
        (
            "--city=D",
            '--city: "D" is not a city: write a code of 2 to 8 letters and digits, like FRA or FRA=Frankfurt',
        ),
        (
            "--city=DFW,new york",
            '--city: "new york" is not a city: write a code of 2 to 8 letters and digits, like FRA or FRA=Frankfurt',
        ),
        ("--city=FRA=Frankfurt,fra=Main", "--city: city FRA has two names, Frankfurt and Main; choose one"),
        (
            f"--city={','.join(f'C{number}' for number in range(101))}",
            "--city: 101 cities are too many for one machine; choose at most 100",
        ),
        ("--limit=5", '--limit: "5" is not a limit: write it like instances=50, vcpus=16 or memory=64Gi'),
        ("--limit=disks=5", '--limit: "disks=5" is not a limit: write it like instances=50, vcpus=16 or memory=64Gi'),
        ("--limit=instances=many", '--limit: "instances=many" is not a limit: write it like instances=50'),
        ("--limit=instances=0", '--limit: "instances=0" is not a limit: write it like instances=50'),
        ("--limit=memory=64", '--limit: "memory=64" is not a limit: write it like memory=64Gi'),
        ("--limit=vcpus=4x", '--limit: "vcpus=4x" is not a limit: write it like vcpus=16'),
        ("--limit=memory=900000Ti", '--limit: "memory=900000Ti" is more than quota can count; choose less'),
    ],
)
def test_cities_and_limits_that_make_no_sense_are_refused(
    compute: Compute, pretended: Pretended, flag: str, sentence: str
) -> None:
    result = compute("local", "up", flag)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"Error: {sentence}\n"
    assert pretended.calls == []


def test_cities_and_limits_are_parsed_as_people_write_them(compute: Compute, pretended: Pretended) -> None:
    compute("local", "up", "--city=dfw, FRA=Frankfurt am Main", "--city", "SIN,SIN", "--limit=vcpus=1.5,memory=2Gi")
    wanted = Settings({"DFW": "", "FRA": "Frankfurt am Main", "SIN": ""}, {VCPUS: 1500, MEMORY: 2048})
    assert [call[3] for call in pretended.calls] == [wanted]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("vcpus=1000000,memory=1000000000Mi", "10 instances, 1000000 vCPUs, 976562.5 GiB of memory"),
        ("instances=1000000000,vcpus=999999.999", "1000000000 instances, 999999.999 vCPUs, 80 GiB of memory"),
        ("vcpus=0.5,memory=512Mi", "10 instances, 0.5 vCPUs, 0.5 GiB of memory"),
    ],
)
def test_limits_are_shown_in_full(compute: Compute, limits: str, words: str) -> None:
    assert f"  Limits:     {words}" in compute("local", "up", f"--limit={limits}").lines


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    path = state.Paths(tmp_path / "local").output
    path.parent.mkdir()
    path.write_text("one\ntwo\nthree\n")
    return path


@pytest.mark.parametrize(("flags", "expected"), [([], "one\ntwo\nthree\n"), (["--tail=2"], "two\nthree\n")])
def test_logs_are_shown_also_when_it_does_not_run(
    compute: Compute, logged: Path, flags: list[str], expected: str
) -> None:
    result = compute("local", "logs", *flags)
    assert (result.code, result.out, result.err) == (0, expected, "")


def test_logs_can_be_followed_until_ctrl_c(
    compute: Compute, logged: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = iter(["four\n", "five\n"])

    def sleep(seconds: float) -> None:
        line = next(more, None)
        if line is None:
            raise KeyboardInterrupt
        with logged.open("a") as file:
            file.write(line)

    monkeypatch.setattr(clock, "sleep", sleep)
    result = compute("local", "logs", "-f", "--tail=1")
    assert (result.code, result.out) == (0, "three\nfour\nfive\n")
    assert compute("local", "logs", "-f", "--tail=1", tty=True).out == "five\n\n"  # after the ^C that was echoed


_UID = "1211d6ac-e74e-4899-be2a-4e885881cec2"
LOGGED = [
    (
        '{"url": "https://127.0.0.1:6443", "event": "ready", "level": "info", '
        '"timestamp": "2026-11-02T11:59:55.321421Z"}',
        "2026-11-02 11:59:55Z  info     —           —                     ready  url=https://127.0.0.1:6443",
    ),
    (
        f'{{"controller": "quota-gate", "plane": "cell-dfw", "namespace": "ns-{_UID}", "name": "web-0", "pass": 7, '
        f'"request": "cell-dfw:ns-{_UID}/web-0", "seconds": 0.5, "error": "no  answer", "event": "claim refused", '
        '"level": "warning", "timestamp": "2026-11-02T11:59:56.1Z"}',
        "2026-11-02 11:59:56Z  warning  cell-dfw    quota-gate            claim refused  web-0  seconds=0.5  "
        'error="no answer"',
    ),
    (
        '{"plane": "hub", "controller": "federator", "request": "hub:other/web", "event": "pass crashed", "level": '
        '"error", "exception": "Traceback (most recent call last):\\n  File x\\nKeyError: 5\\n", '
        '"timestamp": "2026-11-02T11:59:57.1Z"}',
        "2026-11-02 11:59:57Z  error    hub         federator             pass crashed  other/web  (KeyError: 5)",
    ),
    ("a line of somebody else", "a line of somebody else"),
    ('{"no": "event"}', '{"no": "event"}'),
    ("[1]", "[1]"),
]


def test_logs_are_lines_for_people_and_json_for_programs(compute: Compute, logged: Path) -> None:
    logged.write_text("".join(f"{raw}\n" for raw, _ in LOGGED))
    assert compute("local", "logs").lines == [expected for _, expected in LOGGED]
    assert compute("local", "logs", "-o", "json").lines == [raw for raw, _ in LOGGED]


def test_long_names_keep_the_columns_of_logs_aligned(
    compute: Compute, logged: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(plane: str, controller: str, event: str) -> str:
        return json.dumps({"plane": plane, "controller": controller, "event": event, "level": "info"}) + "\n"

    def sleep(seconds: float) -> None:
        if logged.read_text().endswith(later):
            raise KeyboardInterrupt
        with logged.open("a") as file:
            file.write(later)

    later = entry("hub", "sites", "third")
    logged.write_text(
        entry("hub", "sites", "first") + entry("a-project-of-ours", "workload-deployment-federator", "second")
    )
    monkeypatch.setattr(clock, "sleep", sleep)
    assert compute("local", "logs", "--follow").lines == [
        "  info     hub                sites                          first",
        "  info     a-project-of-ours  workload-deployment-federator  second",
        "  info     hub                sites                          third",
    ]


def test_without_logs_there_is_nothing_to_show(compute: Compute) -> None:
    result = compute("local", "logs")
    assert (result.code, result.err) == (
        1,
        "Error: the local federation has logged nothing yet\n\ncompute local up\n",
    )
