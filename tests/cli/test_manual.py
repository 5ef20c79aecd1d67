"""The manual says what the commands are, and every example in it was run: here, word for word.

`REWRITE=1` writes what the examples print now; `make generate` then brings it into the manual.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.workload import WORKLOAD
from datum_compute.cli import examples as module
from datum_compute.cli import manual
from datum_compute.cli.examples import Example, examples, parse, text_of
from datum_compute.cli.failures import Exit
from datum_compute.cli.tree import Root, Verbs
from datum_compute.local.state import Paths
from tests.cli.commands.test_local import Pretended, pretended  # noqa: F401  (a fixture)
from tests.cli.conftest import Compute, FakeClock
from tests.cli.scene import controllers, set_up
from tests.cli.server import ApiServer

REPOSITORY = Path(__file__).parents[2]
REWRITE = os.environ.get("REWRITE") == "1"
MANIFEST = """\
apiVersion: compute.datumapis.com/v1alpha
kind: Workload
metadata:
  name: mail
spec:
  template:
    spec:
      runtime:
        resources: {instanceType: datumcloud/d1-standard-2}
        sandbox: {containers: [{name: app, image: registry.example/mail:3}]}
      networkInterfaces: [{network: {name: default}}]
  placements:
    - name: default
      cityCodes: [SIN]
      scaleSettings: {minReplicas: 1}
"""


def leaves() -> list[str]:
    """Every command that does something itself."""

    def below(command: click.Command, path: tuple[str, ...]) -> list[str]:
        if not isinstance(command, Verbs):
            return [" ".join(path)]
        context = click.Context(command)
        found = []
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            found += below(child, (*path, name))
        return found

    return below(Root(), ())


ALL = examples()


def test_every_command_has_an_example() -> None:
    assert {one.path for one in ALL} == set(leaves())


def test_examples_are_written_as_they_are_read() -> None:
    found = [
        Example("a b", "Do it.", "a b --c", "one\n\n  two\n", 0),
        Example("a b", "Do it again.", "a b", "", 8),
        Example("c", "And this.", "c", "#1\n", 0),
    ]
    assert list(parse(text_of("About\nthis.", found))) == found
    assert text_of(module.FILE.read_text("utf-8").partition("\n\n== ")[0], ALL) == module.FILE.read_text("utf-8")


@pytest.fixture
def session(
    api: ApiServer,
    compute: Compute,
    clock: FakeClock,
    pretended: Pretended,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Compute:
    """The project of the examples; whenever a command waits, the controllers do their work."""
    set_up(api, compute)
    (tmp_path / "workload.yaml").write_text(MANIFEST)

    def sleep(seconds: float) -> None:
        clock.turn(seconds)
        controllers(api)

    monkeypatch.setattr(clock, "sleep", sleep)
    return compute


def paused(api: ApiServer) -> None:
    api.patch(WORKLOAD, "shop", {"metadata": {"annotations": {ROLLOUT_PAUSED: "true"}}})


BEFORE: dict[str, Callable[[ApiServer], None]] = {"rollout resume": paused}


def shown_by(example: Example, session: Compute, api: ApiServer, folder: Path, local: Pretended) -> tuple[str, int]:
    """What it prints on the screen of whoever types it: paths and process ids of this machine are left out."""
    home = folder / "local"
    if example.path.startswith("local") and example.path != "local up":
        local.up(home)
        home.mkdir()
        Paths(home).output.write_text("first\n2026-11-02T11:59:58Z listening port=6443\n2026-11-02T11:59:59Z ready\n")
    if example.path in BEFORE:
        BEFORE[example.path](api)
    result = session(*shlex.split(example.line), steps=[lambda: controllers(api)] * 4)
    return (result.out + result.err).replace(str(home), "~/.local/state/datum-compute"), result.code


@pytest.mark.parametrize("example", ALL, ids=lambda one: one.line)
def test_an_example_prints_what_the_manual_says(
    example: Example,
    session: Compute,
    api: ApiServer,
    tmp_path: Path,
    pretended: Pretended,  # noqa: F811
) -> None:
    shown, code = shown_by(example, session, api, tmp_path, pretended)
    if example.shown == "...\n":
        assert shown
        shown = example.shown
    if REWRITE:
        rewrite(example, shown, code)
    else:
        assert shown == example.shown
        assert code == example.code


def rewrite(example: Example, shown: str, code: int) -> None:
    """One example after the other, in one process."""
    introduction = module.FILE.read_text("utf-8").partition("\n\n== ")[0]
    now = [one._replace(shown=shown, code=code) if one.line == example.line else one for one in examples()]
    module.FILE.write_text(text_of(introduction, now), "utf-8")


def test_help_shows_the_examples(session: Compute) -> None:
    result = session("rollout", "undo", "--help", program="datumctl compute")
    assert "Examples:\n  Go back to the revision before.\n    $ datumctl compute rollout undo shop -y\n" in result.out


def test_the_generated_files_are_up_to_date() -> None:
    assert manual.main([str(REPOSITORY), "--check"]) == 0


def test_a_file_that_is_not_up_to_date_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.main([str(tmp_path)]) == 0
    (tmp_path / "docs" / "man" / "compute-quota.1").write_text("old")
    assert manual.main([str(tmp_path), "--check"]) == 1
    assert "docs/man/compute-quota.1; run make generate" in capsys.readouterr().err


def test_every_exit_code_is_explained() -> None:
    assert [int(code) for code, _ in manual.EXIT_CODES] == [int(code) for code in Exit]


def test_every_command_and_flag_is_in_the_manual() -> None:
    text = manual.files()["docs/cli.md"]
    for path in leaves():
        assert f"### compute {path}\n" in text
    for flag in ("--fail-fast", "--to-revision", "--constrained", "--request-timeout", "--breakdown"):
        assert flag in text


@pytest.mark.parametrize("path", [path for path in manual.files() if path.endswith(".1")])
@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_groff_has_nothing_to_say_about_a_man_page(path: str) -> None:
    text = manual.files()[path]
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-k"], input=text, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "User commands" in done.stdout
