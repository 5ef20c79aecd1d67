"""What can be typed after a verb: global flags, shared options and their types. Entry points: `command`, `option`.

Loaded for every `--help`, so it imports click and nothing that talks.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from datum_compute.cli.shell.failures import Exit, usage
from datum_compute.cli.shell.habits import INSTANCES, WORKLOADS, without_type
from datum_compute.cli.shell.tree import Leaf
from datum_compute.cli.show import durations

if TYPE_CHECKING:
    from datum_compute.cli.shell.run import Run

FLAGS = "datum_compute.cli.shell.flags"  # where the global flags of one invocation are collected, in click's `meta`

LONGEST_CALL_SECONDS = 24.0 * 86400  # sockets count milliseconds in 31 bits

_PLACE = ("project", "kubeconfig", "context")
_LARGEST = 2**31 - 1  # what the fields of the API hold
_SHOWN_DIGITS = 40
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_name(text: str) -> bool:
    """Whether it is a DNS label, which names of workloads and projects have to be."""
    return _NAME.fullmatch(text) is not None


def placed(command: str, flags: Mapping[str, Any]) -> str:
    """A command of ours with the flags that say where it talks to, as far as they were given and matter to it."""
    from shlex import quote

    if command.endswith("--help") or command.partition(" ")[0] == "local":
        return command
    return " ".join((command, *(f"--{name}={quote(flags[name])}" for name in _PLACE if flags.get(name))))


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
    """The name of an object, checked because it becomes part of an address; `noun` is what it names. The type may stand
    before it, as in workload/shop."""

    name = "name"

    def __init__(self, noun: str, types: Sequence[str]) -> None:
        self.noun = noun
        self.types = types

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = without_type(str(value), self.types)
        type_, _, name = text.partition("/")
        if is_name(type_.replace(".", "-")) and is_name(name):
            raise usage(f'"{text}" is no {self.noun}: name one as {name} or {self.noun}/{name}')
        if not is_name(text):
            raise usage(
                f'"{text}" is no {self.noun} name: use lower-case letters, digits and hyphens, at most 63 of them'
            )
        return text


def _whole(value: Any, param: click.Parameter | None, least: int) -> int:
    """-1 for a number below zero; raises for anything else that is no number, and for one that is too large."""
    text = str(value).strip()
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()):
        raise usage(f'{_flag(param)}: "{value}" is no number; use {least} or more')
    if text.startswith("-"):
        return -1
    if len(digits.lstrip("0")) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        shown = text if len(text) <= _SHOWN_DIGITS else f"{text[:_SHOWN_DIGITS]}…"
        raise usage(f'{_flag(param)}: "{shown}" is too large; use {_LARGEST} at most')
    return int(digits)


class Replicas(click.ParamType[int]):
    name = "int"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if (number := _whole(value, param, 1)) < 1:
            raise usage("min replicas must be at least 1")
        return number


class Count(click.ParamType[int]):
    """A whole number."""

    name = "int"

    def __init__(self, least: int = 1) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if (number := _whole(value, param, self._least)) < self._least:
            raise usage(f'{_flag(param)}: "{value}" is too small; use {self._least} or more')
        return number


class Image(click.ParamType[str]):
    """An image of a container, by a flag or an answer."""

    name = "image"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from datum_compute.api.images import is_image

        text = str(value)
        if text.strip() and not is_image(text):
            raise usage(f"{_flag(param)}: {no_image(text)}")
        return text


def no_image(text: str) -> str:
    return f'"{text}" is no image; write it like registry.example/shop:2.1, with the name in lower case'


class Port(click.ParamType[int]):
    name = "int"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
            raise usage(f'--port: "{value}" is no port; use 1 to 65535, or 0 for none')
        return int(text)


class Choice(click.ParamType[str]):
    """One of a few words, in any case."""

    name = "choice"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value).lower()
        if word not in self.words:
            raise usage(f'{_flag(param)}: "{value}" is not known; use {one_of(self.words)}')
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


def one_of(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _check_waiting(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """A limit to a wait that nobody asked for would be ignored without a word."""
    typed = ctx.get_parameter_source("timeout") is ParameterSource.COMMANDLINE
    if typed and values.get("wait") is False:
        raise usage("--timeout needs --wait: without it there is no wait")


def _flag(param: click.Parameter | None) -> str:
    return param.opts[-1] if param is not None else "value"


class GlobalOption(click.Option):
    """Valid before and after the verb; the last one given counts, and its value is kept aside for `Run`."""

    def __init__(self, *declarations: str, **attributes: Any) -> None:
        super().__init__(list(declarations), callback=_remember, expose_value=False, **attributes)


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    given = ctx.meta.setdefault(FLAGS, {})
    assert param.name is not None
    if param.name == "verbose":
        given["verbose"] = given.get("verbose", 0) + (value or 0)
    elif value not in (None, False):
        given[param.name] = value


def global_options() -> list[click.Parameter]:
    return [
        GlobalOption("--project", metavar="NAME", help="Project to work in (DATUM_PROJECT)."),
        GlobalOption("--org", metavar="NAME", help="Organization, for information only (DATUM_ORG)."),
        GlobalOption(
            "-o", "--output", metavar="FORMAT", help="Output format; table unless the command says otherwise."
        ),
        GlobalOption("-q", "--quiet", is_flag=True, help="Leave out progress, hints and notes (DATUM_COMPUTE_QUIET)."),
        GlobalOption(
            "--color", type=Choice("auto", "always", "never"), help="When to use colour (NO_COLOR, CLICOLOR_FORCE)."
        ),
        GlobalOption("--no-headers", is_flag=True, help="Leave out the titles of table columns."),
        GlobalOption(
            "--request-timeout",
            type=Duration(LONGEST_CALL_SECONDS),
            metavar="DURATION",
            help="Longest wait for an answer of the server, all tries included (DATUM_COMPUTE_REQUEST_TIMEOUT); 30s "
            "unless given.",
        ),
        GlobalOption(
            "-v",
            "--verbose",
            count=True,
            help="Show each API call on stderr; twice, bodies too (DATUM_COMPUTE_VERBOSE).",
        ),
        GlobalOption("--kubeconfig", metavar="PATH", help="Kubeconfig whose context is the project (KUBECONFIG)."),
        GlobalOption("--context", metavar="NAME", help="Context of the kubeconfig; its current one unless given."),
    ]


option = click.option
message_option = click.option("-m", "--message", default="", metavar="TEXT", help="What to say in the history.")
watch_option = click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
WORKLOAD_NAME = Name("workload", WORKLOADS)
INSTANCE_NAME = Name("instance", INSTANCES)
workload_argument = click.argument("workload", type=WORKLOAD_NAME, metavar="WORKLOAD")

Need = Callable[["Run"], None]
Body = Callable[..., Exit | None]


def command(
    name: str,
    *,
    needs: Iterable[Need] = (),
    outputs: Sequence[str] = ("table",),
    check: Callable[..., None] | None = None,
) -> Callable[[Body], Leaf]:
    """Makes a verb of a function that takes a `Run` and its flags.

    Wrong output formats and whatever `check` finds in the flags are reported first, then each of `needs` is met, and
    only then the function runs.
    """

    def wrap(body: Body) -> Leaf:
        def invoke(**values: Any) -> int:
            from datum_compute.cli.shell.run import Run

            ctx = click.get_current_context()
            run = Run.of(ctx.find_root().obj, ctx.meta.get(FLAGS, {}), outputs)
            if check is not None:
                check(**values)
            _check_waiting(ctx, values)
            with run:
                for need in needs:
                    need(run)
                return int(body(run, **values) or Exit.OK)

        params = [*reversed(getattr(body, "__click_params__", [])), *global_options()]
        leaf = Leaf(name, callback=invoke, params=params, help=body.__doc__)
        leaf.outputs = tuple(outputs)
        return leaf

    return wrap
