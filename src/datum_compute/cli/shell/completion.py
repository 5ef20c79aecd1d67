"""Completion of command lines. Entry points: `answer`, `script`.

`answer` speaks the protocol of `__complete`: one candidate per line with its description after a tab, then a directive.
On any error there are no candidates: a shell that waits for Tab is no place for error messages.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import click

from datum_compute.cli.shell.environment import Clock, Environment
from datum_compute.cli.shell.flags import Choice, Cities, Name, ShortNames
from datum_compute.cli.shell.habits import without_type
from datum_compute.cli.shell.tree import Leaf, Root, Verbs
from datum_compute.cli.show.escapes import visible

if TYPE_CHECKING:
    from datum_compute.cli.talk.project import Project

CALL_SECONDS = 2.0
_TARGET_FLAGS = ("project", "kubeconfig", "context")


class Directive(IntEnum):
    FILES = 0
    NO_FILES = 4


class Candidate(NamedTuple):
    value: str
    description: str = ""


_UNKNOWN = click.Command("unknown")  # after a word that is not a verb


class _Position(NamedTuple):
    """Where the cursor is."""

    command: click.Command
    option: click.Option | None  # if its value comes next
    words: tuple[str, ...]  # arguments of the command so far
    flags: dict[str, str]  # the flags so far that have a value, by parameter


def answer(words: Sequence[str], environment: Environment) -> str:
    try:
        candidates, directive = _complete(words, environment)
    except Exception:
        candidates, directive = [], Directive.NO_FILES
    lines = ["\t".join(visible(part) for part in candidate if part) for candidate in candidates]
    text = "".join(f"{line}\n" for line in (*lines, f":{int(directive)}"))
    encoding = getattr(environment.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _complete(words: Sequence[str], environment: Environment) -> tuple[list[Candidate], Directive]:
    *before, partial = words or [""]
    root = Root()
    with click.Context(root, info_name=environment.program, obj=environment) as ctx:
        at = _position(ctx, root, before)
        if "--" in before and isinstance(at.command, Leaf) and at.command.passes_words:
            return [], Directive.NO_FILES
        if at.option is None and partial.startswith("-"):
            flag, equals, value = partial.partition("=")
            at_value = at._replace(option=_option(at.command, flag)) if equals else at
            if at_value.option is not None:
                candidates, directive = _values(at_value, value, environment)
                return _prefixed(f"{flag}=", _matching(candidates, value)), directive
            return _matching(_flags(at.command), partial), Directive.NO_FILES
        candidates, directive = _candidates(ctx, at, partial, environment)
        return _matching(candidates, partial), directive


def _matching(candidates: Iterable[Candidate], partial: str) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.value.lower().startswith(partial.lower())]


def _prefixed(prefix: str, candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates with the part of the word before them: a shell replaces the whole word."""
    return [Candidate(f"{prefix}{candidate.value}", candidate.description) for candidate in candidates]


def _position(ctx: click.Context, command: click.Command, before: Sequence[str]) -> _Position:
    option: click.Option | None = None
    words: list[str] = []
    flags: dict[str, str] = {}
    for word in before:
        if option is not None:
            flags[str(option.name)] = word
            option = None
        elif word.startswith("-"):
            flag, equals, value = word.partition("=")
            named = _option(command, flag)
            option = named if named is not None and _takes_value(named) and not equals else None
            if named is not None and equals:
                flags[str(named.name)] = value
        elif word == "help" and command is ctx.command:
            continue
        elif isinstance(command, Verbs):
            child = command.get_command(ctx, word)
            if child is None:
                child = command.commands.get(command.bare, _UNKNOWN)
                words.append(word)
            command = child
        else:
            words.append(word)
    return _Position(command, option, tuple(words), flags)


def _option(command: click.Command, flag: str) -> click.Option | None:
    options = [param for param in _params(command) if isinstance(param, click.Option)]
    return next((option for option in options if flag in (*option.opts, *option.secondary_opts)), None)


def _params(command: click.Command) -> list[click.Parameter]:
    """The parameters of a command; those of a group include those of its default verb."""
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
    ctx: click.Context, at: _Position, partial: str, environment: Environment
) -> tuple[list[Candidate], Directive]:
    if at.option is not None:
        return _values(at, partial, environment)
    if isinstance(at.command, Verbs):
        verbs = [Candidate(*verb) for verb in at.command.verbs(ctx)]
        bare = at.command.commands.get(at.command.bare)
        return verbs + (_arguments(bare, (), at, partial, environment) if bare is not None else []), Directive.NO_FILES
    candidates = _arguments(at.command, at.words, at, partial, environment)
    if at.command.name == "deploy" and not partial:
        candidates += _flags(at.command)
    return candidates, Directive.NO_FILES


def _arguments(
    command: click.Command, words: tuple[str, ...], at: _Position, partial: str, environment: Environment
) -> list[Candidate]:
    """Candidates for the next argument of a verb."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    if arguments and arguments[-1].nargs < 0:  # the last one takes all remaining words
        arguments += [arguments[-1]] * len(words)
    if len(words) >= len(arguments):
        return []
    param = arguments[len(words)]
    if isinstance(param.type, Choice):
        return [Candidate(word) for word in param.type.words]
    if isinstance(param.type, Name):
        type_ = partial[: partial.find("/") + 1]
        is_known = without_type(f"{type_}name", param.type.types) == "name"
        return _prefixed(type_, _names(param.type.noun, at, environment)) if is_known else []
    return _names(str(param.name), at, environment)


def _values(at: _Position, partial: str, environment: Environment) -> tuple[list[Candidate], Directive]:
    option = at.option
    assert option is not None
    if isinstance(option.type, Choice):
        return [Candidate(word) for word in option.type.words], Directive.NO_FILES
    if isinstance(option.type, Cities):
        return _next_items(_names("city", at, environment), partial), Directive.NO_FILES
    if isinstance(option.type, ShortNames):
        return _next_items(_names("short_name", at, environment), partial), Directive.NO_FILES
    if option.is_flag:
        return [Candidate("true"), Candidate("false")], Directive.NO_FILES
    if option.name in ("file", "kubeconfig", "save_to", "directory"):
        return [], Directive.FILES
    if option.name == "output":
        outputs = at.command.outputs if isinstance(at.command, Leaf) else ("table", "wide", "json", "yaml", "name")
        return [Candidate(word) for word in outputs], Directive.NO_FILES
    kind = "container_of_instance" if (at.command.name, option.name) == ("exec", "container") else str(option.name)
    return _names(kind, at, environment), Directive.NO_FILES


def _next_items(candidates: Iterable[Candidate], partial: str) -> list[Candidate]:
    """Candidates for the next item of a list separated by commas, without those that it has already."""
    *before, _ = partial.split(",")
    typed = {word.strip().lower() for word in before}
    left = [candidate for candidate in candidates if candidate.value.lower() not in typed]
    return _prefixed("".join(f"{word}," for word in before), left)


def _names(kind: str, at: _Position, environment: Environment) -> list[Candidate]:
    """Names from files on this machine, or from the server with one call; none when it does not answer."""
    from datum_compute.cli.shell import candidates

    if kind == "instance_type":
        return [Candidate(*pair) for pair in candidates.instance_types()]
    if kind == "context":
        return [Candidate(name) for name in candidates.contexts(at.flags.get("kubeconfig", ""), environment.environ)]
    if kind == "backup":
        directory = at.flags.get("directory", "")
        return [Candidate(*pair) for pair in candidates.backups(directory, environment.clock.now())]
    read: dict[str, Callable[[Project], Iterable[tuple[str, str]]]] = {
        "workload": candidates.workloads,
        "instance": candidates.instances,
        "city": candidates.cities,
        "to_revision": lambda project: candidates.revisions(project, at.words, environment.clock.now()),
        "revision": lambda project: candidates.revisions(project, at.words, environment.clock.now()),
        "placement": lambda project: candidates.placements(project, at.words),
        "short_name": lambda project: candidates.short_names(project, at.words),
        "container": lambda project: candidates.containers(project, at.words),
        "container_of_instance": lambda project: candidates.containers_of_instance(project, at.words),
    }
    if kind not in read:
        return []
    impatient = Environment(
        program=environment.program,
        environ=environment.environ,
        stdout=environment.stdout,
        clock=_ImpatientClock(environment.clock),
    )
    target = {name: at.flags[name] for name in _TARGET_FLAGS if name in at.flags}
    try:
        with candidates.connected(impatient, CALL_SECONDS, target) as project:
            return [Candidate(*pair) for pair in read[kind](project)]
    except Exception:
        return []


class _ImpatientClock:
    """A clock that refuses to sleep, so that there are no retries."""

    def __init__(self, clock: Clock) -> None:
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.alarm = clock.alarm

    def sleep(self, seconds: float) -> None:
        raise TimeoutError


_SCRIPTS = {
    # Readline breaks words at = and : as well, so words that were typed without a space between are joined again, and
    # of each candidate only the part after the last such break is returned.
    "bash": """_{function}() {{
    local line directive=4 i rest=${{COMP_LINE:0:COMP_POINT}} bare prefix
    local -a words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        bare=${{rest#"${{rest%%[![:space:]]*}}"}}
        if ((i == COMP_CWORD)); then line=$bare; else line=${{COMP_WORDS[i]}}; fi
        if ((i == 0)) || [[ $bare != "$rest" ]]; then words+=("$line"); else words[-1]+=$line; fi
        rest=${{bare#"$line"}}
    done
    line=${{words[-1]}}
    prefix=${{line%"${{line##*[$COMP_WORDBREAKS]}}"}}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :* ]]; then
            directive=${{line#:}}
        else
            line=${{line%%$'\\t'*}}
            COMPREPLY+=("${{line#"$prefix"}}")
        fi
    done < <({program} __complete "${{words[@]:1}}" 2>/dev/null)
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
    if (( directive == 0 )); then compset -P '--*='; _files; else _describe '{program}' found; fi
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
complete -c {program} -l kubeconfig -r -F
complete -c {program} -l dir -r -F
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
    """The script for a shell; `program` is the one word that the user types."""
    return _SCRIPTS[shell].format(program=program, function=program.replace("-", "_"))
