"""The manual covers all commands, and every example in it is run here, word for word.

`REWRITE=1` writes what the examples print now; `make generate` then brings it into the manual.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from datum_compute.cli.shell import examples as module
from datum_compute.cli.shell.examples import Example, examples, parse, text_of
from datum_compute.cli.shell.failures import Exit
from datum_compute.cli.shell.tree import Root, Verbs
from datum_compute.local import daemon
from datum_compute.runtime.testing.simulation import Simulation
from tests.cli.conftest import Compute
from tests.cli.product import Stored, history, opened
from tests.conftest import own_environ
from tools import manual

REPOSITORY = Path(__file__).parents[2]
REWRITE = os.environ.get("REWRITE") == "1"


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
    assert {example.path for example in ALL} == set(leaves()), "add what is missing to cli/shell/examples.txt"


def test_examples_are_written_as_they_are_read() -> None:
    found = [
        Example("a b", "Do it.", "a b --c", "one\n\n  two\n", 0),
        Example("a b", "Do it again.", "a b", "", 8),
        Example("c", "And this.", "c", "#1\n", 0),
    ]
    assert list(parse(text_of("About\nthis.", found))) == found
    assert text_of(module.FILE.read_text("utf-8").partition("\n\n== ")[0], ALL) == module.FILE.read_text("utf-8")


# Commands typed before an example, in a healthy project; then a minute passes. The quota is used up before shop needs
# more of it, so that its cities do not race for the rest.
SHORT_OF_QUOTA = ("scale blog --min=6 --wait", "scale shop --min=3")
BEFORE = {
    "status": SHORT_OF_QUOTA,
    "why": SHORT_OF_QUOTA,
    "events": SHORT_OF_QUOTA,
    "workloads list": SHORT_OF_QUOTA,
    "workloads describe": SHORT_OF_QUOTA,
    "instances list": SHORT_OF_QUOTA,
    "instances describe": SHORT_OF_QUOTA,
    "quota": SHORT_OF_QUOTA,
    "rollout resume": ("rollout pause shop",),
}
LOCAL = [example for example in ALL if example.path.startswith("local ")]
OTHERS = [example for example in ALL if example not in LOCAL]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return history(tmp_path_factory.mktemp("history"))


@pytest.mark.parametrize("example", OTHERS, ids=lambda example: example.line)
async def test_an_example_prints_what_the_manual_says(
    example: Example, stored: Stored, simulation: Simulation, tmp_path: Path
) -> None:
    """On the federation that `compute local up` starts, whose time passes when a command waits."""
    async with opened(stored, simulation, tmp_path, local=example.path == "open") as command:
        for line in BEFORE.get(example.path, ()):
            assert (await command(line)).code == 0
        if example.path in BEFORE:
            await simulation.advance(60)
        result = await command(example.line)
    check(example, result.out + result.err, result.code)


@pytest.mark.timeout(120)
def test_the_examples_of_the_local_federation_print_what_the_manual_says(tmp_path: Path) -> None:
    """One after the other, with a real federation; values that differ between runs are replaced."""
    environ = own_environ()
    state = tmp_path / "state"
    environ["DATUM_COMPUTE_LOCAL_DIR"] = str(state)
    program = Path(sys.executable).with_name("compute")
    try:
        for example in LOCAL:
            if "--city" in example.line:
                daemon.down(state)  # another choice of cities is for the next start
            words = [str(program), *shlex.split(example.line)]
            done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
            check(example, _as_always(done.stdout + done.stderr, state), done.returncode)
    finally:
        daemon.down(state)


def _as_always(text: str, state: Path) -> str:
    for pattern, output in (
        (re.escape(str(state)), "~/.local/state/datum-compute"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:6443"),
        (r"NAME\.localhost:\d+", "NAME.localhost:8088"),
        (r"process([ =])\d+", r"process\g<1>77"),
        (r"\d{4}-\d\d-\d\dT\d{6}Z", "2026-11-02T120000Z"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "2026-11-02 12:00:00Z"),
        (r"(?<=Z)   \d+s +\d+ KiB +", "   5s    388 KiB   "),
        (r"SIZE +MADE BY", "SIZE      MADE BY"),
    ):
        text = re.sub(pattern, output, text)
    return text


def check(example: Example, output: str, code: int) -> None:
    if example.output == "...\n":
        assert output
        output = example.output
    if REWRITE:
        rewrite(example, output, code)
    else:
        assert output == example.output
        assert code == example.code


def rewrite(example: Example, output: str, code: int) -> None:
    """One example after the other, in one process."""
    introduction = module.FILE.read_text("utf-8").partition("\n\n== ")[0]
    now = [other._replace(output=output, code=code) if other.line == example.line else other for other in examples()]
    module.FILE.write_text(text_of(introduction, now), "utf-8")


def test_help_shows_the_examples(compute: Compute) -> None:
    result = compute("rollout", "undo", "--help", program="datumctl compute")
    assert "Examples:\n  Go back to the previous revision.\n    $ datumctl compute rollout undo shop -y\n" in result.out


def test_the_generated_files_are_up_to_date() -> None:
    assert manual.main([str(REPOSITORY), "--check"]) == 0


def test_a_file_that_is_not_up_to_date_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert manual.main([str(tmp_path)]) == 0
    (tmp_path / "docs" / "man" / "compute-quota.1").write_text("old")
    assert manual.main([str(tmp_path), "--check"]) == 1
    assert "docs/man/compute-quota.1; run make generate" in capsys.readouterr().err


def test_every_exit_code_is_explained() -> None:
    assert [int(code) for code, _ in manual.EXIT_CODES] == [int(code) for code in Exit]


def test_every_variable_is_explained() -> None:
    code = REPOSITORY / "src" / "datum_compute"
    texts = [
        path.read_text("utf-8") for folder in ("cli", "local", "providers") for path in (code / folder).rglob("*.py")
    ]
    found = {name for text in texts for name in re.findall(r"DATUM_COMPUTE_[A-Z_]*[A-Z]", text)}
    assert found == {name for name, _ in manual.VARIABLES if name.startswith("DATUM_COMPUTE_")}


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
