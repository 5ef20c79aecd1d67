"""The manual, written from the commands themselves: docs/cli.md and man pages. Entry point: `main`, which
`make generate` calls."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from datum_compute import __version__
from datum_compute.cli.shell.examples import PROGRAM, Example, examples
from datum_compute.cli.shell.flags import GlobalOption
from datum_compute.cli.shell.tree import Leaf, Root, Verbs
from tools import roff
from tools.generate import mark, run

_ORIGIN = "datum_compute.cli"

Row = tuple[str, str]

SUMMARY = (
    "Deploy and manage workloads in cities. The same program is `compute` and, as a plugin of datumctl, "
    "`datumctl compute`."
)

EXIT_CODES: tuple[Row, ...] = (
    ("0", "success; also a question answered with no, and Ctrl-C while watching"),
    ("1", "any other failure: the server, the network, an invalid manifest"),
    ("2", "usage: an unknown flag or command, or missing or contradictory arguments"),
    ("3", "the named object does not exist"),
    ("4", "the object was changed by others at the same time, and retries did not help"),
    ("5", "the wait took too long; the change itself was made"),
    ("6", "the rollout failed (only with --fail-fast)"),
    ("7", "not signed in, or not allowed"),
    ("8", "something would change (only with --dry-run --exit-code)"),
    ("9", "access to compute was not requested, because the question was answered with no"),
    ("10", "compute is not enabled for the project, and there is no terminal to ask in"),
    ("11", "access to compute was denied or revoked"),
    ("12", "access to compute was requested and is not active yet; run the command again later"),
    ("13", "not available on this platform"),
    ("14", "something is held up (only with why --exit-code)"),
    ("130", "interrupted with Ctrl-C"),
)

VARIABLES: tuple[Row, ...] = (
    ("DATUM_PROJECT", "the project, unless --project is given"),
    ("DATUM_ORG", "the organization, for information only"),
    ("KUBECONFIG", "kubeconfig files whose current context is the project, unless --kubeconfig is given"),
    ("DATUM_API_HOST", "the platform to talk to; set by datumctl"),
    ("DATUM_CREDENTIALS_HELPER", "the program that is asked for a token; set by datumctl"),
    ("DATUM_SESSION", "the session whose token is asked for; set by datumctl"),
    ("DATUM_COMPUTE_CA_FILE", "certificates to trust when talking to DATUM_API_HOST or DATUM_COMPUTE_LOGS_URL"),
    ("DATUM_COMPUTE_LOGS_URL", "the server that has the logs, if it is not that of the project"),
    ("DATUM_COMPUTE_INSECURE_SKIP_TLS_VERIFY", "1 trusts any certificate of DATUM_API_HOST"),
    ("DATUM_COMPUTE_LOCAL_DIR", "where the local federation keeps its state"),
    ("DATUM_COMPUTE_INSTANCES", "what runs instances, unless local up --instances is given"),
    ("DATUM_COMPUTE_ENGINE", "the socket of the container engine, unless local up --engine is given"),
    ("DATUM_COMPUTE_SKIP_ACCESS_CHECK", "1 does not ask whether the project may use compute"),
    ("DATUM_COMPUTE_ACTOR", "who is named in the history of a workload"),
    ("DATUM_COMPUTE_QUIET", "1 is the same as --quiet"),
    ("DATUM_COMPUTE_VERBOSE", "1 is the same as -v, 2 as -vv"),
    ("DATUM_COMPUTE_REQUEST_TIMEOUT", "the same as --request-timeout"),
    ("TRACEPARENT", "the trace that a change continues, as in W3C Trace Context"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "the collector that traces of changes are sent to; needs the extra tracing"),
    ("NO_COLOR, CLICOLOR_FORCE", "never and always use colour, unless --color is given"),
)

PLACES: tuple[str, ...] = (
    "the context of a kubeconfig, when --kubeconfig or --context is given;",
    "the platform that DATUM_API_HOST names, with a token of DATUM_CREDENTIALS_HELPER: so datumctl runs its plugins;",
    "the current context of KUBECONFIG;",
    f"a federation that runs on this machine, started by `{PROGRAM} local up`.",
)

SECRETS = (
    "Values of variables are part of a workload and of its history: whoever may read the workloads or the ConfigMaps "
    "of a project reads them. Take what is secret from a Secret in the manifest, with `valueFrom.secretKeyRef`. Tokens "
    "are never printed, and -vv hides the values of variables, Secrets and ConfigMaps."
)


class Command(NamedTuple):
    """One command as the manual describes it. `verbs` are those of a group, each with its help."""

    path: str
    usage: str
    help: tuple[str, ...]  # paragraphs
    options: tuple[Row, ...]
    verbs: tuple[Row, ...]
    bare: str
    outputs: tuple[str, ...]
    examples: tuple[Example, ...]

    @property
    def title(self) -> str:
        return f"{PROGRAM} {self.path}"


def files() -> dict[str, str]:
    """Text by path below the repository."""
    found = list(commands())
    everywhere = global_options()
    pages = {
        f"docs/man/{PROGRAM}.1": roff.overview(SUMMARY, found, everywhere, PLACES, VARIABLES, EXIT_CODES, SECRETS),
        **{f"docs/man/{PROGRAM}-{first.path}.1": roff.page(first, rest) for first, rest in _families(found)},
    }
    marked = {path: f'.\\" {mark(_ORIGIN)}\n{text}' for path, text in pages.items()}
    return {"docs/cli.md": f"<!-- {mark(_ORIGIN)} -->\n\n{markdown(found, everywhere)}", **marked}


def main(arguments: Sequence[str] | None = None) -> int:
    return run(_ORIGIN, files(), arguments)


def commands() -> Iterator[Command]:
    """Groups before their verbs, in the order of the help."""
    root = Root()
    with click.Context(root, info_name=PROGRAM) as ctx:
        yield from _below(root, ctx)


def _below(group: Verbs, ctx: click.Context) -> Iterator[Command]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=ctx) as here:
            yield _described(command, here)
            if isinstance(command, Verbs):
                yield from _below(command, here)


def _described(command: click.Command, ctx: click.Context) -> Command:
    path = ctx.command_path.removeprefix(f"{PROGRAM} ")
    aliases = command.aliases if isinstance(command, Verbs) else {}
    return Command(
        path=path,
        usage=" ".join((ctx.command_path, *command.collect_usage_pieces(ctx))),
        help=tuple(" ".join(part.split()) for part in (command.help or "").split("\n\n")),
        options=tuple(_options(command, ctx)),
        verbs=tuple(
            (", ".join((name, *(alias for alias, target in aliases.items() if target == name))), text)
            for name, text in (command.verbs(ctx) if isinstance(command, Verbs) else ())
        ),
        bare=command.bare if isinstance(command, Verbs) else "",
        outputs=tuple(command.outputs) if isinstance(command, Leaf) else (),
        examples=tuple(examples(path)),
    )


def _options(command: click.Command, ctx: click.Context) -> Iterator[Row]:
    for param in command.get_params(ctx):
        own = isinstance(param, click.Option) and not isinstance(param, GlobalOption) and param.name != "help"
        if own and (record := param.get_help_record(ctx)) is not None:
            yield record


def global_options() -> list[Row]:
    root = Root()
    with click.Context(root, info_name=PROGRAM) as ctx:
        records = [param.get_help_record(ctx) for param in root.get_params(ctx)]
    return [record for record in records if record is not None]


def _families(found: Sequence[Command]) -> Iterator[tuple[Command, list[Command]]]:
    """Each command of the top level with those below it."""
    for first in found:
        if " " not in first.path:
            yield first, [command for command in found if command.path.startswith(f"{first.path} ")]


def markdown(found: Sequence[Command], everywhere: Sequence[Row]) -> str:
    parts = [
        f"# The `{PROGRAM}` command",
        SUMMARY,
        f"Version {__version__}. `{PROGRAM} COMMAND --help` shows the same for one command.",
        _table(
            ("Command", "What it does"),
            [(f"[`{command.title}`](#{_anchor(command)})", command.help[0]) for command in found],
        ),
        "## Targets",
        "In this order:",
        "\n".join(f"{number}. {text}" for number, text in enumerate(PLACES, 1)),
        "## Secrets",
        SECRETS,
        "## Global options",
        "Valid before and after every command.",
        _table(("Option", ""), [(f"`{flag}`", text) for flag, text in everywhere]),
        "## Environment",
        _table(("Variable", ""), [(f"`{name}`", text) for name, text in VARIABLES]),
        "## Exit codes",
        _table(("Code", "Meaning"), EXIT_CODES),
        "## Commands",
        *(text for command in found for text in _section(command)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(command: Command) -> Iterator[str]:
    yield f"### {command.title}"
    yield from map(_plain, command.help)
    yield f"```\n{command.usage}\n```"
    if command.verbs:
        yield _table(("Command", ""), [(f"`{names}`", text) for names, text in command.verbs])
    if command.bare:
        yield f"`{command.title}` alone is `{command.title} {command.bare}`."
    if command.options:
        yield _table(("Option", ""), [(f"`{flag}`", text) for flag, text in command.options])
    if len(command.outputs) > 1:
        first, *others = command.outputs
        yield f"Output: `{first}`, or with `-o` {', '.join(f'`{other}`' for other in others)}."
    for example in command.examples:
        yield _plain(example.title)
        printed = "" if example.output == "...\n" else example.output
        yield f"```console\n$ {PROGRAM} {example.line}\n{printed}```"
        if example.code:
            yield f"Exit code {example.code}."


def _anchor(command: Command) -> str:
    return command.title.replace(" ", "-")


def _table(titles: Row, rows: Sequence[Row]) -> str:
    lines = [
        titles,
        ("---", "---"),
        *((left.replace("|", "\\|"), _plain(right).replace("|", "\\|")) for left, right in rows),
    ]
    return "\n".join(f"| {left} | {right} |" for left, right in lines)


def _plain(text: str) -> str:
    """Angle brackets are no markup here."""
    return text.replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
