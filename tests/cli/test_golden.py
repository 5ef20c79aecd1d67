"""What every command prints, in each of its formats and in a terminal of 80 columns: one file a command in golden/.

`REWRITE=1` writes the files anew; a change of a text is then a change that can be read in a diff.
"""

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.cli.commands.test_local import Pretended, pretended  # noqa: F401  (a fixture)
from tests.cli.conftest import NOW, Compute, FakeClock, Result, admit, kubeconfig
from tests.cli.product import MANIFEST
from tests.cli.scene import controllers, pause, set_up
from tests.cli.server import ApiServer
from tests.cli.test_manual import REWRITE, leaves

GOLDEN = Path(__file__).with_name("golden")
NARROW = "80 columns: "
COLOURED = "colour: "

# The lines that are typed for each command; with -o they are typed once for each format that it knows.
FORMATS = {
    "status": ("shop", ("table", "json", "yaml")),
    "logs": ("shop --utc", ("text", "json")),
    "events": ("shop --since=3h", ("table", "json", "yaml")),
    "why": ("shop", ("table", "wide", "json", "yaml")),
    "workloads list": ("", ("table", "wide", "json", "yaml", "name")),
    "workloads describe": ("shop", ("wide", "json", "yaml", "name")),
    "instances list": ("", ("table", "wide", "json", "yaml", "name")),
    "instances describe": ("shop-default-dfw-1", ("table", "json", "yaml", "name")),
    "rollout history": ("shop", ("table", "wide", "json", "yaml")),
    "quota": ("--breakdown", ("table", "json", "yaml")),
    "access show": ("", ("table", "json", "yaml")),
    "cities list": ("", ("table", "json", "yaml", "name")),
    "cities describe": ("AMS", ("table", "json", "yaml", "name")),
    "instance-types list": ("", ("table", "json", "yaml", "name")),
    "instance-types describe": ("datumcloud/d1-standard-2", ("table", "json", "yaml", "name")),
    "rollout status": ("blog", ("table", "json")),
    "scale": ("shop --min=3", ("table", "json", "yaml", "name")),
    "restart": ("shop", ("table", "json", "yaml", "name")),
    "rollout restart": ("shop --city=AMS", ("table", "json", "yaml", "name")),
    "rollout undo": ("shop -y", ("table", "json", "yaml", "name")),
    "rollout pause": ("blog", ("table", "json", "yaml", "name")),
    "rollout resume": ("shop", ("table", "json", "yaml", "name")),
    "deploy": ("new --image=registry.example/new:1 --city=ams --no-wait", ("table", "json", "yaml", "name")),
    "destroy": ("blog -y", ("table", "name")),
    "local status": ("", ("table", "json", "yaml")),
    "local restore": ("", ("table", "json", "yaml", "name")),
    "version": ("", ("table",)),
}
OTHERS = {
    "deploy": [
        "deploy shop --image=registry.example/shop:3 --env=LOG_LEVEL=debug --dry-run --diff",
        "deploy -f workload.yaml",
    ],
    "access request": ["access request", "access request --wait"],
    "logs": [
        "logs shop --tail=2 --utc --show-query",
        "logs shop --city=SIN",
        "logs shop --search=nothing",
        "logs nope",
    ],
    "exec": [
        "exec shop-default-ams-0 -- ls -l",
        "exec shop-default-ams-0 ls",
        "exec shop-default-ams-0 --",
        "exec shop-default-ams-0 -c db -- ls",
        "exec nope -- ls",
    ],
    "completion": [f"completion {shell}" for shell in ("bash", "zsh", "fish", "powershell")],
    "open": ["open shop"],
    "local up": [
        "local up",
        "local up --instances=containers",
        "local up --city=DFW,FRA=Frankfurt --limit=instances=50,memory=128Gi",
    ],
    "local down": ["local down"],
    "local reset": ["local reset -y", "local reset"],
    "local kubeconfig": ["local kubeconfig"],
    "local logs": ["local logs"],
    "local backup": ["local backup", "local backup monday.db"],
    "local restore": ["local restore latest"],
    "destroy": ["destroy shop", "destroy nope -y"],
    "rollout resume": ["rollout resume blog"],
    "quota": ["quota --constrained", "quota --city=AMS"],
    "workloads list": ["workloads --health=available", "workloads --city=SIN", "workloads --no-headers -q"],
    "instances list": ["instances --status=pending", "instances --city=AMS --workload=blog"],
    "rollout history": ["rollout history shop --revision=2"],
    "why": ["why", "why -o json", "why shop-default-dfw-1", "why blog --exit-code", "why shop --exit-code", "why nope"],
}


def typed(path: str) -> list[str]:
    arguments, formats = FORMATS.get(path, ("", ()))
    plain = " ".join(filter(None, (path, arguments)))
    lines = [
        plain,
        f"{NARROW}{plain}",
        f"{COLOURED}{plain}",
        *(f"{plain} -o {format_}" for format_ in formats[1:]),
    ]
    wide = [f"{NARROW}{plain} -o wide"] if "wide" in formats[1:] else []
    return (lines + wide if formats else []) + OTHERS.get(path, [])


class Stage:
    """The project of `scene`, set up again after a line that changed something."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entered = ExitStack()
        self._current: tuple[Compute, ApiServer] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.close()

    def run(self, line: str) -> Result:
        compute, api = self._current or self._fresh()
        result = run(compute, api, line)
        if api.writes() or compute.clock.now() != NOW:
            self._current = None
            self._entered.close()
        return result

    def _fresh(self) -> tuple[Compute, ApiServer]:
        clock = WorkingClock()
        api = clock.api = self._entered.enter_context(ApiServer(clock))
        admit(api)
        path = kubeconfig(self._folder / "kubeconfig", api.project_url())
        compute = Compute(clock, {"KUBECONFIG": str(path)}, self._folder)
        set_up(api, compute)
        (self._folder / "workload.yaml").write_text(MANIFEST)
        self._current = compute, api
        return compute, api


class WorkingClock(FakeClock):
    """Whenever a command sleeps, the controllers do their work."""

    api: ApiServer | None = None

    def sleep(self, seconds: float) -> None:
        self.turn(seconds)
        if self.api is not None:
            controllers(self.api)


def run(compute: Compute, api: ApiServer, line: str) -> Result:
    steps = [lambda: controllers(api)] * 4
    if "rollout resume" in line:
        pause(api)
    if line.startswith("local"):  # with nothing else to talk to
        compute.environ.pop("KUBECONFIG", None)
    if line.startswith(NARROW):
        words = shlex.split(line.removeprefix(NARROW))
        environ = {"TERM": "dumb"}  # nothing is drawn again, and there is no colour
        return compute(*words, tty=True, columns=80, steps=steps, stdin="y\n", environ=environ)
    if line.startswith(COLOURED):
        return compute(*shlex.split(line.removeprefix(COLOURED)), "--color=always", steps=steps)
    return compute(*shlex.split(line), steps=steps)


def transcript(line: str, result: Result, home: Path) -> str:
    parts = [f"$ {line}\n", result.out]
    if result.err:
        parts.append(f"--- stderr\n{result.err}")
    if result.code:
        parts.append(f"--- exit {result.code}\n")
    return "".join(parts).replace(str(home), "HOME").replace("\x1b", "␛")


@pytest.mark.parametrize("path", leaves())
def test_a_command_prints_what_its_golden_file_says(
    path: str,
    tmp_path: Path,
    pretended: Pretended,  # noqa: F811
) -> None:
    texts = []
    with Stage(tmp_path) as stage:
        for line in typed(path):
            pretended.up(tmp_path / "local")
            texts.append(transcript(line, stage.run(line), tmp_path))
    text = "\n".join(texts)
    file = GOLDEN / f"{path.replace(' ', '-')}.txt"
    if REWRITE:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8"), f"REWRITE=1 writes {file.name} as it is now"


def test_every_command_has_its_file_and_no_other_is_left() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {path.replace(" ", "-") for path in leaves()}
    assert [path for path in leaves() if not typed(path)] == [], "say in FORMATS or OTHERS what to type"
