"""Global flags, shared options and their types, and the decorator that makes a verb. Entry points: `verb`, `option`.

Loaded for every `--help`, so it imports click and nothing that connects to a server.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from datum_compute.cli.shell.failures import Exit, usage
from datum_compute.cli.shell.habits import INSTANCES, WORKLOADS, without_type
from datum_compute.cli.shell.tree import Leaf
from datum_compute.cli.show import durations

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run
    from datum_compute.cli.show.views import View, Watch

F = TypeVar("F", bound=Callable[..., Any])

GLOBAL_FLAGS = "datum_compute.cli.shell.flags"  # the key in click's `meta` that collects those of one invocation

LONGEST_CALL_SECONDS = 24.0 * 86400  # sockets count milliseconds in 31 bits

_TARGET_FLAGS = ("project", "kubeconfig", "context")
_LARGEST = 2**31 - 1  # what the fields of the API hold
_SHOWN_DIGITS = 40
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_dns_label(text: str) -> bool:
    """Whether a workload or project may have this name."""
    return _DNS_LABEL.fullmatch(text) is not None


def with_target_flags(command: str, flags: Mapping[str, Any]) -> str:
    """A command of ours with the flags that choose its target, if they were given and matter to it."""
    from shlex import quote

    if command.endswith("--help") or command.partition(" ")[0] == "local":
        return command
    return " ".join((command, *(f"--{name}={quote(flags[name])}" for name in _TARGET_FLAGS if flags.get(name))))


class Duration(click.ParamType[float]):
    name = "duration"

    def __init__(self, longest: float = durations.LONGEST) -> None:
        self._longest = longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else durations.parse(value, self._longest)
        except ValueError as error:
            raise usage(f"{_flag(param)}: {error}") from None


class Name(click.ParamType[str]):
    """The name of an object, optionally after its type, as in `workload/shop`. Checked because it becomes part of a
    URL."""

    name = "name"

    def __init__(self, noun: str, types: Sequence[str]) -> None:
        self.noun = noun
        self.types = types

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = without_type(str(value), self.types)
        type_, _, name = text.partition("/")
        if is_dns_label(type_.replace(".", "-")) and is_dns_label(name):
            article = "an" if self.noun.startswith("i") else "a"
            raise usage(f'"{text}" is not {article} {self.noun}: write {name} or {self.noun}/{name}')
        if not is_dns_label(text):
            raise usage(
                f'"{text}" is not a valid {self.noun} name: use at most 63 lower-case letters, digits and hyphens'
            )
        return text


class Count(click.ParamType[int]):
    """A whole number of at least `least`; `too_small` is the error for a smaller one."""

    name = "int"

    def __init__(self, least: int = 1, too_small: str = "") -> None:
        self._least = least
        self._too_small = too_small

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdecimal()):
            raise usage(f'{_flag(param)}: "{value}" is not a number; use {self._least} or more')
        negative = text.startswith("-")
        if not negative and (len(digits.lstrip("0")) > len(str(_LARGEST)) or int(digits) > _LARGEST):
            excerpt = text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}…"
            raise usage(f'{_flag(param)}: "{excerpt}" is too large; use at most {_LARGEST}')
        if negative or int(digits) < self._least:
            raise usage(self._too_small or f'{_flag(param)}: "{value}" is too small; use {self._least} or more')
        return int(digits)


MIN_REPLICAS = Count(1, "min replicas must be at least 1")


class Image(click.ParamType[str]):
    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from datum_compute.api.images import is_image

        text = str(value)
        if text.strip() and not is_image(text):
            raise usage(f"{_flag(param)}: {not_an_image(text)}")
        return text


def not_an_image(text: str) -> str:
    return f'"{text}" is not an image; write it like registry.example/shop:2.1, with the name in lower case'


class Port(click.ParamType[int]):
    """A port; `optional` if 0 stands for none."""

    name = "int"

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        is_number = text.isascii() and text.isdecimal() and len(text) <= 5
        if not (is_number and (0 if self._optional else 1) <= int(text) <= 65535):
            none = ", or 0 for none" if self._optional else ""
            raise usage(f'--port: "{value}" is not a port; use 1 to 65535{none}')
        return int(text)


class Choice(click.ParamType[str]):
    """One of a few words, in upper or lower case."""

    name = "choice"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value).lower()
        if word not in self.words:
            raise usage(f'{_flag(param)}: unknown value "{value}"; use {one_of(self.words)}')
        return word

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join(self.words)


class Cities(click.ParamType[tuple[str, ...]]):
    """City codes, separated by commas."""

    name = "city,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        cities = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if not cities:
            raise usage("--city: name at least one city", "cities")
        return cities


class ShortNames(click.ParamType[tuple[str, ...]]):
    """Names of instances of one workload, separated by commas, with or without the name of the workload before them."""

    name = "name,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        if not parts:
            raise usage(f"{_flag(param)}: name at least one instance", "instances")
        return tuple(INSTANCE_NAME.convert(part, param, ctx) for part in parts)


def one_of(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _flag(param: click.Parameter | None) -> str:
    return param.opts[-1] if param is not None else "value"


class GlobalOption(click.Option):
    """An option valid before and after the verb. The last one given counts, and `Run` gets its value, not the verb."""

    def __init__(self, *declarations: str, **attributes: Any) -> None:
        super().__init__(list(declarations), callback=_collect, expose_value=False, **attributes)


def _collect(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    flags = ctx.meta.setdefault(GLOBAL_FLAGS, {})
    assert param.name is not None
    if param.name == "verbose":
        flags["verbose"] = flags.get("verbose", 0) + (value or 0)
    elif value not in (None, False):
        flags[param.name] = value


def global_options() -> list[click.Parameter]:
    return [
        GlobalOption("--project", metavar="NAME", help="Project to work in (DATUM_PROJECT)."),
        GlobalOption("--org", metavar="NAME", help="Organization, for information only (DATUM_ORG)."),
        GlobalOption("-o", "--output", metavar="FORMAT", help="Output format; most commands default to table."),
        GlobalOption("-q", "--quiet", is_flag=True, help="Leave out progress, hints and notes (DATUM_COMPUTE_QUIET)."),
        GlobalOption(
            "--color", type=Choice("auto", "always", "never"), help="When to use colour (NO_COLOR, CLICOLOR_FORCE)."
        ),
        GlobalOption("--no-headers", is_flag=True, help="Leave out the titles of table columns."),
        GlobalOption(
            "--request-timeout",
            type=Duration(LONGEST_CALL_SECONDS),
            metavar="DURATION",
            help="Longest wait for an answer of the server, including retries; 30s by default "
            "(DATUM_COMPUTE_REQUEST_TIMEOUT).",
        ),
        GlobalOption(
            "-v",
            "--verbose",
            count=True,
            help="Show each API call on stderr; twice to show bodies too (DATUM_COMPUTE_VERBOSE).",
        ),
        GlobalOption("--kubeconfig", metavar="PATH", help="Kubeconfig whose context is the project (KUBECONFIG)."),
        GlobalOption("--context", metavar="NAME", help="Context of the kubeconfig; the current one by default."),
    ]


option = click.option
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Let the server check the change, without making it.")
message_option = click.option("-m", "--message", default="", metavar="TEXT", help="Description for the history.")
watch_option = click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
timeout_option = click.option(
    "--timeout", type=Duration(), metavar="DURATION", help="Longest time to wait; 0 waits forever."
)
fail_fast_option = click.option(
    "--fail-fast", is_flag=True, help="Give up when an instance has been failing for a minute."
)


def wait_options(body: F) -> F:
    """The options of verbs that start a rollout: whether to wait for it, how long, and a description of the change."""
    wait = click.option("--wait/--no-wait", default=False, help="Watch the rollout until it is complete.")
    return wait(timeout_option(message_option(body)))


WORKLOAD_NAME = Name("workload", WORKLOADS)
INSTANCE_NAME = Name("instance", INSTANCES)
workload_argument = click.argument("workload", type=WORKLOAD_NAME, metavar="WORKLOAD")

Need = Callable[["Run"], None]
Body = Callable[..., "int | View | Watch | None"]


def verb(
    name: str,
    *,
    needs: Iterable[Need] = (),
    outputs: Sequence[str] = ("table",),
    flags: Callable[..., Any] | None = None,
    check: Callable[..., None] | None = None,
    leaf: type[Leaf] = Leaf,
) -> Callable[[Body], Leaf]:
    """Makes a verb of a function that takes a `Run` and its flags, each by name or all of them in one `flags` Struct.

    Wrong output formats and whatever `check` finds wrong with the flags are reported first, then each of `needs` is
    met, and only then the function runs. A view that it returns is shown in the format that was asked for; a number is
    the exit code.
    """

    def wrap(body: Body) -> Leaf:
        def invoke(**values: Any) -> int:
            from datum_compute.cli.shell.run import Run

            ctx = click.get_current_context()
            environment = ctx.find_root().obj
            command = ctx.command_path.removeprefix(environment.program).strip()
            run = Run.of(environment, ctx.meta.get(GLOBAL_FLAGS, {}), outputs, command)
            arguments = values if flags is None else {"flags": flags(**values)}
            if check is not None:
                check(**arguments)
            _check_waiting(ctx, values)
            with run:
                for need in needs:
                    need(run)
                result = body(run, **arguments)
                if result is None or isinstance(result, int):
                    return int(result or Exit.OK)
                run.show(result)
                return Exit.OK

        params = [*reversed(getattr(body, "__click_params__", [])), *global_options()]
        made = leaf(name, callback=invoke, params=params, help=body.__doc__)
        made.outputs = tuple(outputs)
        return made

    return wrap


def _check_waiting(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Without a wait, its limit would be ignored silently."""
    typed = ctx.get_parameter_source("timeout") is ParameterSource.COMMANDLINE
    if typed and values.get("wait") is False:
        raise usage("--timeout needs --wait: without it there is no wait")
