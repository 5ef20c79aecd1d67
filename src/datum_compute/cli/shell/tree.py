"""The tree of verbs. Entry points: `Root`, `Verbs`, `listing_verbs`, `Leaf`.

The module of a verb is loaded when the verb is used, so the one-line help of the top level is here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import click

from datum_compute.cli.shell.environment import put
from datum_compute.cli.shell.failures import Exit, Failure

_UNBREAKABLE_HYPHEN = "\u2011"

# Words that set a variable: KEY=VALUE after --env, and anything that may be the like.
_AFTER_ENV_FLAG = re.compile(r"^([^=]*=).+", re.DOTALL)
_ASSIGNMENT = re.compile(r"^(-[^=]*=[^=]*=|[^-=][^=]*=|=).+", re.DOTALL)


class Entry(NamedTuple):
    """A top-level verb, which is the attribute `command` of its module in `commands`."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()


ENTRIES = (
    Entry("deploy", "Create or update a workload and watch its rollout."),
    Entry("destroy", "Delete a workload and all its instances, in every city.", ("delete",)),
    Entry("status", "Show the health of a workload, its cities, and what blocks it."),
    Entry("why", "Say what holds up a workload or an instance, since when, and who can act."),
    Entry("events", "Show what happened to a workload, in order, in all its cities."),
    Entry("workloads", "List or describe workloads.", ("workload", "wl")),
    Entry("instances", "List or describe instances.", ("instance", "ps")),
    Entry("logs", "Show or follow what the instances of a workload write."),
    Entry("exec", "Run a command in an instance."),
    Entry("scale", "Set how many instances run in each city."),
    Entry("rollout", "Watch, restart, pause or undo a rollout, and show its history."),
    Entry("restart", "Replace all instances, one at a time."),
    Entry("quota", "Show the quota of the project and its use."),
    Entry("access", "Show or request access to compute."),
    Entry("cities", "List the cities the project may use."),
    Entry("instance-types", "List the sizes an instance can have."),
    Entry("open", "Open a workload of the local federation in a browser."),
    Entry("local", "Run the whole federation on this machine."),
    Entry("completion", "Print a script that completes commands, flags and names in a shell."),
    Entry("version", "Show the version of this program."),
)


class HelpFormatter(click.HelpFormatter):
    """Leaves words with hyphens whole: half a flag or half a tag cannot be found or copied."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", _UNBREAKABLE_HYPHEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(term, text.replace("-", _UNBREAKABLE_HYPHEN)) for term, text in rows], col_max, col_spacing)

    def write(self, string: str) -> None:
        super().write(string.replace(_UNBREAKABLE_HYPHEN, "-"))


class Helped(click.Command):
    """A command whose help goes to the injected stdout and lists the global flags separately."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes["add_help_option"] = False
        super().__init__(*args, **attributes)
        self.params.append(
            click.Option(
                ["-h", "--help"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_help,
                help="Show this help.",
            )
        )

    def get_help(self, ctx: click.Context) -> str:
        formatter = HelpFormatter(width=ctx.terminal_width, max_width=ctx.max_content_width)
        self.format_help(ctx, formatter)
        return formatter.getvalue().rstrip("\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from datum_compute.cli.shell.flags import GlobalOption

        own: list[tuple[str, str]] = []
        global_: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (global_ if isinstance(param, GlobalOption) else own).append(record)
        for title, records in (("Options", own), ("Global options", global_)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _help_without_verb() -> None:
    """Shows the help of a group that was called with flags but without a verb."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is None:
        _show_help(ctx)


def _print_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        _show_help(ctx)
        ctx.exit()


def _show_help(ctx: click.Context) -> None:
    put(ctx.find_root().obj.stdout, ctx.get_help() + "\n")


class Leaf(Helped):
    """A verb that does something itself. Superfluous words are an error, never ignored."""

    outputs: Sequence[str] = ("table",)  # the formats it supports, its default first
    passes_words = False  # whether the words after -- are none of ours

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        words = _normalized(ctx, args)
        self._check_pairs(words)
        rest = super().parse_args(ctx, self._with_values(words))
        if rest:
            if any(isinstance(param, click.Argument) for param in self.params):
                self._unexpected(ctx, args, rest)
            unknown_command(ctx, rest)
        return rest

    def _unexpected(self, ctx: click.Context, args: list[str], rest: list[str]) -> NoReturn:
        """Fails for a superfluous word; suggests to leave out a type before the name, which kubectl takes."""
        from datum_compute.cli.shell.habits import is_type

        first = next(iter(args), "")
        suggestion = _quoted(*_below_root(ctx).split(), *args[1:]) if len(rest) == 1 and is_type(first) else ""
        raise Failure(
            f'unexpected argument "{_without_values(rest)[0]}" for "{ctx.command_path}"',
            Exit.USAGE,
            advice=f"Did you mean: {ctx.find_root().obj.program} {suggestion}" if suggestion else "",
            next_command="" if suggestion else f"{_below_root(ctx)} --help",
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from datum_compute.cli.shell.examples import examples

        if found := examples(_below_root(ctx)):
            program = ctx.find_root().obj.program
            with formatter.section("Examples"):
                for index, example in enumerate(found):
                    if index:
                        formatter.write_paragraph()
                    formatter.write_text(example.title)
                    formatter.write(f"{'':>{formatter.current_indent + 2}}$ {program} {example.line}\n")

    def _check_pairs(self, args: Sequence[str]) -> None:
        """Refuses a flag together with its opposite; click would take the last one."""
        typed = set(args[: args.index("--")] if "--" in args else args)
        for param in self.params:
            on, off = typed.intersection(param.opts), typed.intersection(param.secondary_opts)
            if on and off:
                raise Failure(f"{on.pop()} cannot be combined with {off.pop()}", Exit.USAGE)

    def _with_values(self, args: Sequence[str]) -> list[str]:
        """Adds omitted values of flags with an optional value: click would take the next word for it."""
        values = {
            flag: param.flag_value
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and isinstance(param.flag_value, str)
            for flag in param.opts
        }
        end = args.index("--") if "--" in args else len(args)
        return [f"{arg}={values[arg]}" if arg in values else arg for arg in args[:end]] + list(args[end:])


class Verbs(Helped, click.Group):
    """A group of verbs; `bare` is the default verb."""

    def __init__(
        self,
        name: str,
        help_: str,
        commands: Sequence[click.Command] = (),
        *,
        bare: str = "",
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            name, commands=list(commands), help=help_, invoke_without_command=True, callback=_help_without_verb
        )
        self.bare = bare
        self.aliases = dict(aliases or {})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.bare:
            args = self._with_verb(args)
        elif not args:
            args = ["--help"]
        elif self.commands and (where := self._first_word(args)):
            args = [args[where], *args[:where], *args[where + 1 :]]
        return super().parse_args(ctx, _normalized(ctx, args, to_first_word=True))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(cmd_name, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        command = self.get_command(ctx, args[0])
        if command is None and args[0] == "help" and not self.bare:
            if len(args) == 1:
                _show_help(ctx)
                ctx.exit()
            return self.resolve_command(ctx, [*args[1:], "--help"])
        if command is None:
            unknown_command(ctx, args)
        return command.name, command, args[1:]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        Helped.format_options(self, ctx, formatter)

    def verbs(self, ctx: click.Context) -> list[tuple[str, str]]:
        """The names of the verbs, each with its one-line help."""
        return [(name, self.commands[name].get_short_help_str(100)) for name in self.list_commands(ctx)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        def names(verb: str) -> str:
            return ", ".join((verb, *(alias for alias, target in self.aliases.items() if target == verb)))

        with formatter.section("Commands"):
            formatter.write_dl([(names(name), help_) for name, help_ in self.verbs(ctx)])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.bare:
            formatter.write_paragraph()
            formatter.write_text(f"Without a command: {self.bare}. Its options: {ctx.command_path} {self.bare} --help")

    def _with_verb(self, args: list[str]) -> list[str]:
        """The words with the verb moved to the front, wherever among the flags it was typed, or added."""
        where = self._first_word(args)
        if where is None:
            return args if "--help" in args or "-h" in args else [self.bare, *args]
        word = args[where]
        arguments = [param for param in self.commands[self.bare].params if isinstance(param, click.Argument)]
        lists = any(param.nargs < 0 for param in arguments)
        if arguments and not self._names_verb(word, args[where + 1 :]) and not (lists and _is_entry(word)):
            return [self.bare, *args]
        return [word, *args[:where], *args[where + 1 :]]

    def _names_verb(self, word: str, after: list[str]) -> bool:
        """Whether a word is a verb rather than a name; a misspelt verb is recognised by the name that follows it."""
        from datum_compute.cli.shell.habits import closest

        names = [*self.commands, *self.aliases]
        return word in names or (self._first_word(after) is not None and bool(closest(word, names)))

    def _first_word(self, args: list[str]) -> int | None:
        """The index of the first word that is neither a flag nor the value of one. None after an unknown flag: the next
        word may or may not be its value."""
        params = [param for verb in self.commands.values() for param in verb.params]
        takes_value = {
            flag: not param.is_flag and not param.count
            for param in params
            if isinstance(param, click.Option)
            for flag in (*param.opts, *param.secondary_opts)
        }
        skip = False
        for index, arg in enumerate(args):
            if skip:
                skip = False
            elif arg == "--":
                return index + 1 if index + 1 < len(args) else None
            elif arg.startswith("-") and len(arg) > 1:
                flag, has_value = _last_flag(arg, takes_value)
                if flag not in takes_value:
                    return None
                skip = takes_value[flag] and not has_value
            else:
                return index
        return None


def listing_verbs(name: str, help_: str, list_: click.Command, describe: click.Command) -> Verbs:
    """The verbs of a kind of object."""
    return Verbs(name, help_, [list_, describe], bare="list", aliases={"ls": "list", "get": "describe"})


def _last_flag(arg: str, takes_value: Mapping[str, bool]) -> tuple[str, bool]:
    """The last flag in a word, and whether the word includes its value. No flag follows a value in a word."""
    if arg.startswith("--"):
        flag, equals, _ = arg.partition("=")
        return flag, bool(equals)
    letters, equals, _ = arg.partition("=")
    for index, letter in enumerate(letters[1:], 2):
        if takes_value.get(f"-{letter}", True):
            return f"-{letter}", index < len(arg)
    return f"-{letters[-1]}", bool(equals)


def _normalized(ctx: click.Context, args: list[str], *, to_first_word: bool = False) -> list[str]:
    """The words in the forms that click understands; also collects global flags that were turned off."""
    from datum_compute.cli.shell.flags import GLOBAL_FLAGS, GlobalOption
    from datum_compute.cli.shell.habits import normalized

    words, off = normalized(args, ctx.command.params, to_first_word=to_first_word)
    names = {param.name for param in ctx.command.params if isinstance(param, GlobalOption)}
    ctx.meta.setdefault(GLOBAL_FLAGS, {}).update({name: False for name in off if name in names})
    return words


def _is_entry(word: str) -> bool:
    return any(word == entry.name or word in entry.aliases for entry in ENTRIES)


class Root(Verbs):
    """The top level, which loads verbs by name."""

    def __init__(self) -> None:
        from datum_compute.cli.shell.flags import global_options

        super().__init__(
            "compute",
            "Deploy and manage workloads in cities.",
            aliases={alias: entry.name for entry in ENTRIES for alias in entry.aliases},
        )
        self.params = [
            *global_options(),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Show the version.",
            ),
            click.Option(
                ["--plugin-manifest"], is_flag=True, expose_value=False, help="Describe this program to datumctl."
            ),
            *self.params,
        ]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in ENTRIES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self.aliases.get(cmd_name, cmd_name)
        if all(entry.name != name for entry in ENTRIES):
            return None
        from importlib import import_module

        command: click.Command = import_module(f"datum_compute.cli.commands.{name.replace('-', '_')}").command
        return command

    def verbs(self, ctx: click.Context) -> list[tuple[str, str]]:
        return [(entry.name, entry.help) for entry in ENTRIES]


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from datum_compute import __version__

        put(ctx.find_root().obj.stdout, f"{ctx.find_root().obj.program} {__version__}\n")
        ctx.exit()


def unknown_command(ctx: click.Context, words: Sequence[str]) -> NoReturn:
    """Fails for an unknown verb, and suggests the one that was probably meant."""
    from datum_compute.cli.shell.flags import GLOBAL_FLAGS, with_target_flags

    suggestion = _equivalent(ctx, words) or _elsewhere(ctx.find_root(), words) or _similar(ctx, words)
    program = ctx.find_root().obj.program
    command = with_target_flags(suggestion, ctx.meta.get(GLOBAL_FLAGS, {}))
    raise Failure(
        f'unknown command "{_without_values(words)[0]}" for "{ctx.command_path}"',
        Exit.USAGE,
        advice=f"Did you mean: {program} {command}" if suggestion else "",
        next_command="" if suggestion else f"{_below_root(ctx)} --help".strip(),
    )


def _equivalent(ctx: click.Context, words: Sequence[str]) -> str:
    """The command for words of kubectl, or the describe of a name that was given to a list."""
    from datum_compute.cli.shell.habits import equivalent

    if ctx.parent is None:
        return _quoted(*equivalent(words))
    command = ctx.command
    lists = isinstance(command, Verbs) and command.bare == "list" and "describe" in command.commands
    if not lists or len(words) != 1 or any(words[0] == path[-1] for path in _breadth_first(ctx.find_root())):
        return ""
    return _quoted(*_below_root(ctx).split(), "describe", words[0])


def _elsewhere(root_context: click.Context, words: Sequence[str]) -> str:
    """The command line with a verb of this name elsewhere in the tree, as near to the top as possible."""
    for path in _breadth_first(root_context):
        if path[-1] == words[0]:
            return _quoted(*path, *words[1:])
    return ""


def _quoted(*words: str) -> str:
    """The words quoted for a shell, without values that may be secret."""
    import shlex

    return shlex.join(_without_values(words))


def _without_values(words: Sequence[str]) -> list[str]:
    """The words, of assignments to variables only the names, with or without the flag before them."""
    return [
        (_AFTER_ENV_FLAG if flag == "--env" else _ASSIGNMENT).sub(r"\1...", word)
        for flag, word in zip(("", *words), words, strict=False)
    ]


def _breadth_first(context: click.Context) -> Iterator[tuple[str, ...]]:
    level: list[tuple[tuple[str, ...], click.Command]] = [((), context.command)]
    while level:
        below: list[tuple[tuple[str, ...], click.Command]] = []
        for path, command in level:
            if isinstance(command, Verbs):
                for name in (*command.list_commands(context), *command.aliases):
                    child = command.get_command(context, name)
                    if child is not None:
                        yield (*path, name)
                        below.append(((*path, name), child))
        level = below


def _similar(ctx: click.Context, words: Sequence[str]) -> str:
    from datum_compute.cli.shell.habits import closest

    if not isinstance(ctx.command, Verbs):
        return ""
    verb = closest(words[0], [*ctx.command.list_commands(ctx), *ctx.command.aliases])
    return _quoted(*_below_root(ctx).split(), verb, *words[1:]) if verb else ""


def _below_root(ctx: click.Context) -> str:
    names = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.append(at.info_name or "")
        at = at.parent
    return " ".join(reversed(names))
