"""What users of kubectl type, and how it is written here. Entry points: `equivalent`, `normalized`, `closest`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import click

from datum_compute.cli.shell.failures import usage

KUBECTL_FLAGS = {"--replicas": "--min", "--filename": "--file"}  # kubectl's name of a flag, and ours

WORKLOADS = ("workload", "workloads", "wl")
INSTANCES = ("instance", "instances", "inst")
_GROUP = ".compute.datumapis.com"

# Names of types in kubectl, by the command that shows the like here.
_TYPES = {
    "workloads": (*WORKLOADS, "deployments", "deployment", "deploy", "all"),
    "instances": (*INSTANCES, "ps", "pods", "pod", "po"),
    "cities": ("cities", "city", "nodes", "node", "no", "clusters"),
    "quota": ("quota", "resourcequota", "resourcequotas"),
}

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
_LEAST_PREFIX = 3  # letters of a beginning that stands for a name


def without_type(text: str, types: Sequence[str]) -> str:
    """The name in `TYPE/NAME` where the type is one of these, else the text itself."""
    type_, _, name = text.partition("/")
    return name if name and type_.removesuffix(_GROUP).lower() in types else text


def is_type(word: str) -> bool:
    return any(word in types for types in _TYPES.values())


def equivalent(words: Sequence[str]) -> list[str]:
    """The words that do here what these do in kubectl; empty if there are none."""
    verb, rest = words[0], list(words[1:])
    match verb:
        case "get":
            return _list_or_describe(rest, "")
        case "describe":
            return _list_or_describe(rest, "describe")
        case "apply" | "create" | "replace":
            return ["deploy", *(rest or ["-f", "FILE"])]
        case "diff":
            return ["deploy", *rest, "--dry-run", "--diff"]
        case "run":
            return ["deploy", *rest]
    return []


def _list_or_describe(words: list[str], verb: str) -> list[str]:
    """The command that lists or describes what the words name; by default workloads."""
    for index, word in enumerate(words):
        type_, slash, name = word.partition("/")
        for command, types in _TYPES.items():
            if type_.removesuffix(_GROUP) in types:
                rest = [*words[:index], *([name] if slash else []), *words[index + 1 :]]
                return [command, *filter(None, [verb]), *rest]
    return ["workloads", *filter(None, [verb]), *words]


def closest(word: str, names: Iterable[str]) -> str:
    """The name that this word abbreviates or misspells; empty when none is close."""
    unique = list(dict.fromkeys(names))
    bare = word.lstrip("-")
    if len(bare) >= _LEAST_PREFIX:
        longer = [name for name in unique if name.startswith(word)]
        if longer:
            return min(longer, key=len)
    distances = [(_distance(bare, name.lstrip("-")), name) for name in unique]
    distance, name = min(distances, default=(len(word), ""), key=lambda pair: pair[0])
    return name if distance * 3 <= max(len(bare), len(name.lstrip("-"))) else ""


def _distance(word: str, other: str) -> int:
    """How many letters were left out, added, replaced or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(word):
        last, before, row = before, row, [i + 1]
        for j, expected in enumerate(other):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != expected)))
            if i and j and letter == other[j - 1] and word[i - 1] == expected:
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]


class Normalized(NamedTuple):
    """Words in the forms that click understands, and the names of switches that were turned off."""

    words: list[str]
    off: tuple[str, ...] = ()


def normalized(args: Sequence[str], params: Iterable[click.Parameter], *, to_first_word: bool = False) -> Normalized:
    """Rewrites forms that click does not understand: `-o=json`, `--watch=false`, `-v=2`. Fails for a flag without its
    value, for which click would take the next flag. With `to_first_word` only flags before the first other word are
    rewritten."""
    options = {
        flag: param
        for param in params
        if isinstance(param, click.Option)
        for flag in (*param.opts, *param.secondary_opts)
    }
    words: list[str] = []
    off: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--" or (to_first_word and not arg.startswith("-")):
            return Normalized([*words, arg, *rest], tuple(off))
        flags, equals, value = arg.partition("=")
        flag = flags if flags.startswith("--") else _last_letter(flags, options)
        option = options.get(flag)
        if option is None or not arg.startswith("-"):
            words.append(arg)
        elif not equals:
            words.append(arg)
            if takes_value(option) and flag == flags[-len(flag) :]:
                words.append(_value(flag, option, rest, options))
        elif not option.is_flag and not option.count:
            words += [arg] if flags.startswith("--") else [flags, value]
        elif option.count:
            words += [option.opts[0]] * _times(option, value)
        else:
            together = [] if flags.startswith("--") or len(flags) == 2 else [flags[:-1]]
            words = _switched([*words, *together], flag, option, value)
            off += [str(option.name)] if value in _FALSE and not option.secondary_opts else []
    return Normalized(words, tuple(off))


def takes_value(option: click.Option) -> bool:
    """Whether the next word is its value; an optional value follows only after an equals sign."""
    return not option.is_flag and not option.count and not isinstance(option.flag_value, str)


def _last_letter(flags: str, options: dict[str, click.Option]) -> str:
    """Of letters after one hyphen, the flag that a value belongs to: the first that takes one, else the last."""
    for letter in flags[1:]:
        option = options.get(f"-{letter}")
        if option is None or takes_value(option):
            return f"-{letter}"
    return f"-{flags[-1:]}"


def _value(flag: str, option: click.Option, rest: list[str], options: dict[str, click.Option]) -> str:
    if rest and rest[0].partition("=")[0] not in options:
        return rest.pop(0)
    with click.Context(click.Command("")) as ctx:
        metavar = option.make_metavar(ctx)
    raise usage(f"{flag} needs a value: {flag}{'=' if flag.startswith('--') else ' '}{metavar}")


def _times(option: click.Option, value: str) -> int:
    if len(value) != 1 or not value.isdecimal():
        raise usage(f'{option.opts[-1]}: "{value}" is not a number; use 0 to 9')
    return int(value)


def _switched(words: list[str], flag: str, option: click.Option, value: str) -> list[str]:
    """The words with the switch turned on or off, whatever it was before."""
    if value not in (*_TRUE, *_FALSE):
        raise usage(f'{option.opts[-1]}: "{value}" is neither true nor false')
    others = [word for word in words if word not in (*option.opts, *option.secondary_opts)]
    on = (value in _TRUE) is (flag in option.opts)
    return [*others, *([option.opts[-1]] if on else option.secondary_opts[:1])]
