"""Words, flags and help, and errors about what is not understood."""

from pathlib import Path

import click
import pytest

from datum_compute.cli.shell.environment import program_name
from datum_compute.cli.shell.tree import ENTRIES, Root, Verbs
from tests.cli.conftest import Compute, FakeClock


@pytest.fixture
def compute(clock: FakeClock) -> Compute:
    """With an empty environment: nothing here may need anything."""
    return Compute(clock, {})


@pytest.mark.parametrize(
    ("words", "message", "advice"),
    [
        (["workloads", "destroy", "api"], 'unknown command "destroy" for "compute workloads"', "compute destroy api"),
        (["instance-types", "list", "x"], 'unknown command "x" for "compute instance-types list"', None),
        (["instances", "restart", "api", "--city=DFW"], 'unknown command "restart" for "compute instances"', None),
        (["describe", "api"], 'unknown command "describe" for "compute"', "compute workloads describe api"),
        (["up"], 'unknown command "up" for "compute"', "compute local up"),
        (["deplyo", "api"], 'unknown command "deplyo" for "compute"', "compute deploy api"),
        (["quota", "ps"], 'unknown command "ps" for "compute quota"', "compute ps"),
        (["zebra"], 'unknown command "zebra" for "compute"', None),
        (
            ["rollout", "histroy", "hello"],
            'unknown command "histroy" for "compute rollout"',
            "compute rollout history hello",
        ),
        (
            ["deplyo", "api", "--env", "A=b c", "--env=B=d", "-m", "it's new", "--city=DFW"],
            'unknown command "deplyo" for "compute"',
            """compute deploy api --env A=... --env=B=... -m 'it'"'"'s new' --city=DFW""",
        ),
        (["--project=x", "deplyo", "api"], 'unknown command "deplyo" for "compute"', "compute deploy api --project=x"),
    ],
)
def test_a_stray_word_is_an_error_that_names_the_verb_it_may_belong_to(
    compute: Compute, words: list[str], message: str, advice: str | None
) -> None:
    result = compute(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith(f"Error: {message}\n\n")
    if advice:
        assert result.err == f"Error: {message}\n\nDid you mean: {advice}\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["status"], "WORKLOAD is required"),
        (["scale", "api", "extra", "--min=2"], 'unexpected argument "extra" for "compute scale"'),
        (["deploy", "api", "--imagee=x"], "unknown flag: --imagee"),
        (["workloads", "--helth", "degraded"], "unknown flag: --helth"),
        (["workloads", "-z", "list"], "unknown flag: -z"),
        (["rollout", "hello", "world"], 'unexpected argument "world" for "compute rollout status"'),
        (
            ["status", "../x"],
            '"../x" is not a valid workload name: use at most 63 lower-case letters, digits and hyphens',
        ),
        (["rollout", "undo", "api", "--to-revision=-1"], '--to-revision: "-1" is too small; use 0 or more'),
        (["rollout", "history", "api", "--limit=0"], '--limit: "0" is too small; use 1 or more'),
        (
            ["scale", "api", f"--min={'9' * 5000}"],
            '--min: "' + "9" * 40 + '…" is too large; use at most 2147483647',
        ),
        (["workloads", "--request-timeout=9999999d"], "--request-timeout: 9999999d is too long; use at most 24d"),
        (
            ["deploy", "api", "--timeout=soon"],
            '--timeout: "soon" is not a duration; write it like 90s, 15m, 2h, 1h30m or 7d',
        ),
        (["deploy", "api", "--port=99999"], '--port: "99999" is not a port; use 1 to 65535, or 0 for none'),
        (["deploy", "api", "--port=http"], '--port: "http" is not a port; use 1 to 65535, or 0 for none'),
        (["deploy", "api", "--min=0"], "min replicas must be at least 1"),
        (["scale", "api", "--min=-1"], "min replicas must be at least 1"),
        (
            ["deploy", "API"],
            '"API" is not a valid workload name: use at most 63 lower-case letters, digits and hyphens',
        ),
        (["deploy"], "workload name and --image are required, or use -f to specify a manifest file"),
        (["deploy", "--image=x"], "workload name is required"),
        (["completion"], "shell is required: bash, zsh, fish or powershell"),
        (["local", "up", "--port=0"], '--port: "0" is not a port; use 1 to 65535'),
        (["local", "up", "--port=http"], '--port: "http" is not a port; use 1 to 65535'),
        (["deploy", "api", "--city=,"], "--city: name at least one city"),
        (["deploy", "api", "--env=NOTHING"], "--env needs KEY=VALUE to set a variable, or KEY- to remove it"),
        (["deploy", "api", "--env=a b=secret"], '--env: "a b" is not a valid name of a variable'),
        (
            ["workloads", "--health=fine"],
            '--health: unknown value "fine"; use available, degraded, unavailable, progressing, paused, deleting, idle '
            "or unknown",
        ),
        (["workloads", "--color=pink"], '--color: unknown value "pink"; use auto, always or never'),
        (["status", "api", "-o", "xml"], 'unsupported output format "xml": use table, json or yaml'),
        (["workloads", "-o", "xml"], 'unsupported output format "xml": use table, wide, json, yaml or name'),
        (["status", "api", "-o", "wide"], 'unsupported output format "wide": use table, json or yaml'),
    ],
)
def test_usage_errors_are_reported_before_any_call(compute: Compute, words: list[str], error: str) -> None:
    result = compute(*words)
    assert result.code == 2
    assert result.out == ""
    assert result.err.splitlines()[0] == f"Error: {error}"
    assert "Usage:" not in result.err


@pytest.mark.parametrize(
    ("argv0", "environ", "name"),
    [
        ("/usr/bin/compute", {}, "compute"),
        ("/usr/bin/datumctl-compute", {}, "datumctl compute"),
        ("/home/me/.datumctl/plugins/compute", {}, "datumctl compute"),
        ("/opt/plugins/compute", {"DATUM_PLUGIN_API_VERSION": "1"}, "datumctl compute"),
    ],
)
def test_hints_use_the_name_that_was_typed(argv0: str, environ: dict[str, str], name: str) -> None:
    assert program_name(argv0, environ) == name


def test_the_program_name_is_in_every_advice(compute: Compute) -> None:
    result = compute("workloads", "destroy", "api", program="datumctl compute")
    assert result.err == (
        'Error: unknown command "destroy" for "datumctl compute workloads"\n\n'
        "Did you mean: datumctl compute destroy api\n"
    )


def test_the_manifest_is_printed_wherever_the_flag_stands(compute: Compute) -> None:
    result = compute("deploy", "--nonsense", "--plugin-manifest")
    assert result.code == 0
    assert result.out == (
        '{"name": "compute", "version": "0.1.0", '
        '"description": "Deploy and manage containerized workloads on Datum Cloud", '
        '"api_version": 1, "min_api_version": 1}\n'
    )


def test_bare_compute_and_bare_groups_without_a_default_show_their_help(compute: Compute) -> None:
    for words in ((), ("local",), ("-q",), ("-o", "json"), ("--project", "demo")):
        result = compute(*words)
        assert result.code == 0
        assert "Commands:" in result.out


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, Verbs):
        return [path]
    context = click.Context(command)
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += [(*path, name), *leaves(child, (*path, name))]
    return found


ALL_COMMANDS = sorted({(), *leaves(Root())})


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
def test_every_command_has_help_that_needs_nothing(compute: Compute, path: tuple[str, ...]) -> None:
    for flag in ("--help", "-h"):
        result = compute(*path, flag)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"Usage: {' '.join(('compute', *path))}")


@pytest.mark.parametrize("path", ALL_COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", [52, 60, 80])
def test_help_never_breaks_a_word_at_its_hyphen(compute: Compute, path: tuple[str, ...], columns: int) -> None:
    lines = compute(*path, "--help", environ={"COLUMNS": str(columns)}).lines
    assert [line for line in lines if line.endswith("-")] == []


def test_help_marks_a_name_that_can_be_left_out(compute: Compute) -> None:
    assert compute("deploy", "--help").lines[0] == "Usage: compute deploy [OPTIONS] [WORKLOAD]"
    assert compute("status", "--help").lines[0] == "Usage: compute status [OPTIONS] WORKLOAD"


def test_help_shows_ranges_in_words_only(compute: Compute) -> None:
    assert "<=" not in compute("local", "up", "--help").out


def test_the_short_help_of_the_top_level_is_that_of_the_commands_themselves() -> None:
    root = Root()
    for entry in ENTRIES:
        command = root.get_command(click.Context(root), entry.name)
        assert command is not None
        assert command.name == entry.name
        assert command.get_short_help_str(100) == entry.help


@pytest.mark.parametrize("alias", ["delete", "workload", "wl", "instance", "ps"])
def test_aliases_lead_to_the_same_help(compute: Compute, alias: str) -> None:
    assert compute(alias, "--help").code == 0


def test_version_by_flag_and_by_verb(compute: Compute) -> None:
    assert compute("--version").out == "compute 0.1.0\n"
    assert compute("version").out == "compute 0.1.0\n"
    assert '"version": "0.1.0"' in compute("version", "-o", "json").out


def test_without_a_target_the_error_names_local_up(compute: Compute, tmp_path: Path) -> None:
    result = compute("status", "api")
    assert result.code == 2
    assert result.err == (
        "Error: nothing to talk to: no --kubeconfig, no KUBECONFIG, and no federation runs on this machine\n\n"
        "compute local up\n"
    )


def test_a_misspelt_flag_before_a_verb_gets_a_suggestion(compute: Compute) -> None:
    result = compute("workloads", "--helth", "degraded", "list")
    assert result.err == "Error: unknown flag: --helth\n\nDid you mean: --health\n"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["-q"], "the local federation is not running"),
        (["-qo", "json"], "the local federation is not running"),
        (["--dir", "/nowhere", "-q"], "the local federation is not running"),
        (["-oo"], 'unsupported output format "o": '),
        (["--output=x-output"], 'unsupported output format "x-output": '),
    ],
)
def test_flags_may_stand_between_a_group_and_its_verb(
    compute: Compute, tmp_path: Path, flags: list[str], error: str
) -> None:
    result = compute("local", *flags, "status", environ={"DATUM_COMPUTE_LOCAL_DIR": str(tmp_path)})
    assert result.err.startswith(f"Error: {error}")


@pytest.mark.parametrize("words", [["-qo", "json", "list"], ["-qojson", "list"], ["-o", "json", "-q", "list"]])
def test_a_value_is_not_taken_for_the_verb(compute: Compute, words: list[str]) -> None:
    assert compute("workloads", *words).err.startswith("Error: nothing to talk to")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["scale", "shop", "--min=2", "--timeout=5s"], "--timeout needs --wait: without it there is no wait"),
        (["destroy", "shop", "-y", "--timeout=5s"], "--timeout needs --wait: without it there is no wait"),
        (["restart", "shop", "--timeout", "5s"], "--timeout needs --wait: without it there is no wait"),
        (["rollout", "undo", "shop", "--timeout=5s"], "--timeout needs --wait: without it there is no wait"),
        (["access", "request", "--timeout=5s"], "--timeout needs --wait: without it there is no wait"),
        (
            ["deploy", "shop", "--image=x", "--no-wait", "--timeout=5s"],
            "--timeout cannot be combined with --no-wait: there is no wait",
        ),
        (["scale", "shop", "--min=2", "--wait", "--no-wait"], "--wait cannot be combined with --no-wait"),
        (["deploy", "shop", "--image=x", "--no-wait", "--wait"], "--wait cannot be combined with --no-wait"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(compute: Compute, words: list[str], error: str) -> None:
    result = compute(*words)
    assert (result.code, result.err) == (2, f"Error: {error}\n")
