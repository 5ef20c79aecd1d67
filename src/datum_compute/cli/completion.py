"""What may come next on a command line. Entry points: `answer`, `script`.

`answer` speaks the protocol of `__complete`: a candidate a line with its description behind a tab, then a directive.
Whatever goes wrong, the answer is that there is nothing to offer: a shell that waits for Tab is no place for errors.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import click

from datum_compute.cli.controls import visible
from datum_compute.cli.flags import Choice
from datum_compute.cli.surroundings import Clock, Surroundings
from datum_compute.cli.tree import Leaf, Root, Verbs

if TYPE_CHECKING:
    from datum_compute.cli.project import Project

CALL_SECONDS = 2.0
_WHERE = ("project", "kubeconfig", "context")


class Directive(IntEnum):
    FILES = 0
    NO_FILES = 4


class Candidate(NamedTuple):
    value: str
    description: str = ""


_NOTHING = click.Command("nothing")  # below a word that is no verb


class _Position(NamedTuple):
    """Where the cursor is: below which command, at the value of which option, after how many words of its own."""

    command: click.Command
    option: click.Option | None
    words: tuple[str, ...]
    given: dict[str, str]  # the flags before it that say where to look for names


def answer(words: Sequence[str], around: Surroundings) -> str:
    try:
        found, directive = _complete(words, around)
    except Exception:
        found, directive = [], Directive.NO_FILES
    lines = ["\t".join(visible(part) for part in one if part) for one in found]
    text = "".join(f"{line}\n" for line in (*lines, f":{int(directive)}"))
    encoding = getattr(around.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _complete(words: Sequence[str], around: Surroundings) -> tuple[list[Candidate], Directive]:
    *before, partial = words or [""]
    root = Root()
    with click.Context(root, info_name=around.program, obj=around) as ctx:
        at = _position(ctx, root, before)
        if at.option is None and partial.startswith("-"):
            flag, equals, value = partial.partition("=")
            at_value = at._replace(option=_option(at.command, flag)) if equals else at
            if at_value.option is not None:
                found, directive = _values(at_value, around)
                return [Candidate(f"{flag}={one.value}", one.description) for one in _fitting(found, value)], directive
            return _fitting(_flags(at.command), partial), Directive.NO_FILES
        found, directive = _candidates(ctx, at, partial, around)
        return _fitting(found, partial), directive


def _fitting(candidates: Iterable[Candidate], partial: str) -> list[Candidate]:
    return [one for one in candidates if one.value.lower().startswith(partial.lower())]


def _position(ctx: click.Context, command: click.Command, before: Sequence[str]) -> _Position:
    option: click.Option | None = None
    words: list[str] = []
    given: dict[str, str] = {}
    for word in before:
        if option is not None:
            given[str(option.name)] = word
            option = None
        elif word.startswith("-"):
            flag, equals, value = word.partition("=")
            named = _option(command, flag)
            option = named if named is not None and _takes_value(named) and not equals else None
            if named is not None and equals:
                given[str(named.name)] = value
        elif isinstance(command, Verbs):
            child = command.get_command(ctx, word)
            if child is None:
                child = command.commands.get(command.bare, _NOTHING)
                words.append(word)
            command = child
        else:
            words.append(word)
    return _Position(command, option, tuple(words), {key: given[key] for key in _WHERE if key in given})


def _option(command: click.Command, flag: str) -> click.Option | None:
    options = [param for param in _params(command) if isinstance(param, click.Option)]
    return next((one for one in options if flag in (*one.opts, *one.secondary_opts)), None)


def _params(command: click.Command) -> list[click.Parameter]:
    """Those of a group are those of the verb that is meant when none is typed."""
    if isinstance(command, Verbs) and command.bare:
        return [*command.params, *command.commands[command.bare].params]
    return command.params


def _takes_value(option: click.Option) -> bool:
    return not option.is_flag and not option.count


def _flags(command: click.Command) -> Iterable[Candidate]:
    for param in _params(command):
        if isinstance(param, click.Option) and not param.hidden:
            for flag in (*param.opts, *param.secondary_opts):
                if flag.startswith("--"):
                    yield Candidate(flag, param.help or "")


def _candidates(
    ctx: click.Context, at: _Position, partial: str, around: Surroundings
) -> tuple[list[Candidate], Directive]:
    if at.option is not None:
        return _values(at, around)
    found: list[Candidate] = []
    if isinstance(at.command, Verbs):
        found = [Candidate(*verb) for verb in at.command.verbs(ctx)]
        bare = at.command.commands.get(at.command.bare)
        return found + (_named(bare, (), at, around) if bare is not None else []), Directive.NO_FILES
    found = _named(at.command, at.words, at, around)
    if at.command.name == "deploy" and not partial:
        found += _flags(at.command)
    return found, Directive.NO_FILES


def _named(command: click.Command, words: tuple[str, ...], at: _Position, around: Surroundings) -> list[Candidate]:
    """What the next word of a verb may name."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    if len(words) >= len(arguments):
        return []
    param = arguments[len(words)]
    if isinstance(param.type, Choice):
        return [Candidate(word) for word in param.type.words]
    return _asked(str(param.name), at, around)


def _values(at: _Position, around: Surroundings) -> tuple[list[Candidate], Directive]:
    option = at.option
    assert option is not None
    if isinstance(option.type, Choice):
        return [Candidate(word) for word in option.type.words], Directive.NO_FILES
    if option.name in ("file", "kubeconfig", "save_to"):
        return [], Directive.FILES
    if option.name == "output":
        outputs = at.command.outputs if isinstance(at.command, Leaf) else ("table", "wide", "json", "yaml", "name")
        return [Candidate(word) for word in outputs], Directive.NO_FILES
    return _asked(str(option.name), at, around), Directive.NO_FILES


def _asked(what: str, at: _Position, around: Surroundings) -> list[Candidate]:
    """What only the server knows; one call, and nothing when it does not answer."""
    from datum_compute.cli import offers

    ask: dict[str, Callable[[Project], Iterable[tuple[str, str]]]] = {
        "workload": offers.workloads,
        "instance": offers.instances,
        "city": offers.cities,
        "to_revision": lambda project: offers.revisions(project, at.words, around.clock.now()),
        "revision": lambda project: offers.revisions(project, at.words, around.clock.now()),
    }
    if what not in ask:
        return []
    hasty = Surroundings(
        program=around.program, environ=around.environ, stdout=around.stdout, clock=_Hasty(around.clock)
    )
    try:
        with offers.connected(hasty, CALL_SECONDS, at.given) as project:
            return [Candidate(*offer) for offer in ask[what](project)]
    except Exception:
        return []


class _Hasty:
    """A clock that nobody may wait on: there is time for one try."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.monotonic = clock.monotonic

    def sleep(self, seconds: float) -> None:
        raise TimeoutError


_SCRIPTS = {
    "bash": """_{function}() {{
    local line directive=4
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :* ]]; then directive=${{line#:}}; else COMPREPLY+=("${{line%%$'\\t'*}}"); fi
    done < <({program} __complete "${{COMP_WORDS[@]:1:COMP_CWORD-1}}" "${{COMP_WORDS[COMP_CWORD]}}" 2>/dev/null)
    if [[ $directive == 0 ]]; then compopt -o default 2>/dev/null; fi
}}
complete -o nosort -F _{function} {program}
""",
    "zsh": """#compdef {program}
_{function}() {{
    local -a found
    local line directive=4
    while IFS= read -r line; do
        if [[ $line == :* ]]; then
            directive=${{line#:}}
        elif [[ $line == *$'\\t'* ]]; then
            found+=("${{${{line%%$'\\t'*}}//:/\\\\:}}:${{line#*$'\\t'}}")
        else
            found+=("${{line//:/\\\\:}}")
        fi
    done < <({program} __complete "${{words[@]:1:$((CURRENT - 2))}}" "${{words[CURRENT]}}" 2>/dev/null)
    if (( directive == 0 )); then _files; else _describe '{program}' found; fi
}}
compdef _{function} {program}
""",
    "fish": """function __{function}
    set -l words (commandline -opc) (commandline -ct)
    for line in ({program} __complete $words[2..] 2>/dev/null)
        string match -q ':*' -- $line; or echo $line
    end
end
complete -c {program} -f -a '(__{function})'
complete -c {program} -s f -l file -r -F
""",
    "powershell": """Register-ArgumentCompleter -Native -CommandName {program} -ScriptBlock {{
    param($partial, $ast, $cursor)
    $words = @($ast.CommandElements | Select-Object -Skip 1 | ForEach-Object {{ $_.ToString() }})
    if ($partial) {{ $words = @($words | Select-Object -SkipLast 1) }}
    & {program} __complete @words "$partial" 2>$null | Where-Object {{ $_ -notlike ':*' }} | ForEach-Object {{
        $value, $text = $_ -split "`t", 2
        if (-not $text) {{ $text = $value }}
        [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $text)
    }}
}}
""",
}
SHELLS = tuple(_SCRIPTS)


def script(shell: str, program: str) -> str:
    """What a shell has to read once; `program` is what the user types, one word."""
    return _SCRIPTS[shell].format(program=program, function=program.replace("-", "_"))
