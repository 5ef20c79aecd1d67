"""The tree of verbs and how a word finds its verb. Entry points: `root`, `Verbs`, `Leaf`.

A verb's module is loaded when the verb is used; the one-line help of the top level is kept here for that reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import click

from datum_compute.cli.shell.environment import put
from datum_compute.cli.shell.failures import Exit, Failure

# KEY=VALUE behind --env, and where nobody knows what it is for.
_SET_BY_FLAG = re.compile(r"^([^=]*=).+", re.DOTALL)
_SET = re.compile(r"^(-[^=]*=[^=]*=|[^-=][^=]*=|=).+", re.DOTALL)


class Entry(NamedTuple):
    """A verb of the top level; its command is the attribute `command` of its module in `commands`."""

    name: str
    help: str
    aliases: tuple[str, ...] = ()


ENTRIES = (
    Entry("deploy", "Create or update a workload and watch its rollout."),
    Entry("destroy", "Delete a workload and all its instances, in every city.", ("delete",)),
    Entry("status", "Show the health of a workload, its cities, and what blocks it."),
    Entry("workloads", "List or describe workloads.", ("workload", "wl")),
    Entry("instances", "List or describe instances.", ("instance", "ps")),
    Entry("scale", "Set how many instances run in each city."),
    Entry("rollout", "Watch, restart, pause or undo a rollout, and show its history."),
    Entry("restart", "Replace all instances, one at a time."),
    Entry("quota", "Show limits and use of the project."),
    Entry("access", "Show or request access to compute."),
    Entry("cities", "List the cities the project may use."),
    Entry("instance-types", "List the sizes an instance can have."),
    Entry("logs", "Logs are not available yet."),
    Entry("local", "Run the whole federation on this machine."),
    Entry("completion", "Print a script that completes commands, flags and names in a shell."),
    Entry("version", "Show the version of this program."),
)


class Helped(click.Command):
    """Help through the injected stdout, with the global flags in a section of their own."""

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
                help="Show this text.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from datum_compute.cli.shell.flags import GlobalOption

        own: list[tuple[str, str]] = []
        everywhere: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (everywhere if isinstance(param, GlobalOption) else own).append(record)
        for title, records in (("Options", own), ("Global options", everywhere)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _help_without_verb() -> None:
    """A group that was given flags and nothing to do."""
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
    """A verb that does something itself. Words it has no use for are an error, never ignored."""

    outputs: Sequence[str] = ("table",)  # the formats it knows, its default first

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True
        words = _typed_flags(ctx, args)
        self._check_pairs(words)
        rest = super().parse_args(ctx, self._with_values(words))
        if rest:
            if any(isinstance(param, click.Argument) for param in self.params):
                self._unexpected(ctx, args, rest)
            unknown_command(ctx, rest)
        return rest

    def _unexpected(self, ctx: click.Context, args: list[str], rest: list[str]) -> NoReturn:
        """One word too many; a type before the name, as kubectl has it, can be left out."""
        from datum_compute.cli.shell.habits import is_type

        first = next(iter(args), "")
        meant = _typed(*_below_root(ctx).split(), *args[1:]) if len(rest) == 1 and is_type(first) else ""
        raise Failure(
            f'unexpected argument "{_without_values(rest)[0]}" for "{ctx.command_path}"',
            Exit.USAGE,
            advice=f"Did you mean: {ctx.find_root().obj.program} {meant}" if meant else "",
            next_command="" if meant else f"{_below_root(ctx)} --help",
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from datum_compute.cli.shell.examples import examples

        found = examples(_below_root(ctx))
        if found:
            program = ctx.find_root().obj.program
            with formatter.section("Examples"):
                for index, one in enumerate(found):
                    if index:
                        formatter.write_paragraph()
                    formatter.write_text(one.title)
                    formatter.write(f"{'':>{formatter.current_indent + 2}}$ {program} {one.line}\n")

    def _check_pairs(self, args: Sequence[str]) -> None:
        """A flag and its opposite; click would take the last one."""
        typed = set(args[: args.index("--")] if "--" in args else args)
        for param in self.params:
            on, off = typed.intersection(param.opts), typed.intersection(param.secondary_opts)
            if on and off:
                raise Failure(f"{on.pop()} cannot be combined with {off.pop()}", Exit.USAGE)

    def _with_values(self, args: Sequence[str]) -> list[str]:
        """A flag whose value may be left out gets it here: click would take the next word for it."""
        options = [one for one in self.params if isinstance(one, click.Option) and not one.is_flag]
        values = {flag: one.flag_value for one in options if isinstance(one.flag_value, str) for flag in one.opts}
        end = args.index("--") if "--" in args else len(args)
        return [f"{arg}={values[arg]}" if arg in values else arg for arg in args[:end]] + list(args[end:])


class Verbs(Helped, click.Group):
    """A group of verbs; `bare` names the one that is meant when none is typed."""

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
        return super().parse_args(ctx, _typed_flags(ctx, args, to_first_word=True))

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
        """Their names, each with its help in one line."""
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
        """The words with the verb in front, wherever among the flags it was typed."""
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
        """Whether it is a verb and no name; one that is misspelt shows by the name that follows it."""
        from datum_compute.cli.shell.habits import closest

        names = [*self.commands, *self.aliases]
        return word in names or (self._first_word(after) is not None and bool(closest(word, names)))

    def _first_word(self, args: list[str]) -> int | None:
        """Where the first word is that is neither a flag nor the value of one; None as well after a flag that no verb
        knows, because whether the next word is its value nobody can tell."""
        options = [one for verb in self.commands.values() for one in verb.params if isinstance(one, click.Option)]
        takes_value = {
            flag: not one.is_flag and not one.count for one in options for flag in (*one.opts, *one.secondary_opts)
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


def _last_flag(arg: str, takes_value: Mapping[str, bool]) -> tuple[str, bool]:
    """The last flag in a word, and whether its value is in there too; of several letters none comes after a value."""
    if arg.startswith("--"):
        flag, equals, _ = arg.partition("=")
        return flag, bool(equals)
    letters, equals, _ = arg.partition("=")
    for index, letter in enumerate(letters[1:], 2):
        if takes_value.get(f"-{letter}", True):
            return f"-{letter}", index < len(arg)
    return f"-{letters[-1]}", bool(equals)


def _typed_flags(ctx: click.Context, args: list[str], *, to_first_word: bool = False) -> list[str]:
    from datum_compute.cli.shell.flags import FLAGS, GlobalOption
    from datum_compute.cli.shell.habits import as_click_reads

    typed = as_click_reads(args, ctx.command.params, to_first_word=to_first_word)
    everywhere = {param.name for param in ctx.command.params if isinstance(param, GlobalOption)}
    ctx.meta.setdefault(FLAGS, {}).update({name: False for name in typed.off if name in everywhere})
    return typed.words


def _is_entry(word: str) -> bool:
    return any(word == entry.name or word in entry.aliases for entry in ENTRIES)


class Root(Verbs):
    """The top level, whose verbs are loaded by name."""

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
    """The error for a word that is no verb here, with the verb it may have been meant for."""
    from datum_compute.cli.shell.flags import FLAGS, placed

    meant = _equivalent(ctx, words) or _elsewhere(ctx.find_root(), words) or _similar(ctx, words)
    program = ctx.find_root().obj.program
    raise Failure(
        f'unknown command "{_without_values(words)[0]}" for "{ctx.command_path}"',
        Exit.USAGE,
        advice=f"Did you mean: {program} {placed(meant, ctx.meta.get(FLAGS, {}))}" if meant else "",
        next_command="" if meant else f"{_below_root(ctx)} --help".strip(),
    )


def _equivalent(ctx: click.Context, words: Sequence[str]) -> str:
    """For words of kubectl at the top, and for a name that a list does not take but its describe does."""
    from datum_compute.cli.shell.habits import equivalent

    if ctx.parent is None:
        meant = equivalent(words)
        return _typed(*meant) if meant else ""
    command = ctx.command
    lists = isinstance(command, Verbs) and command.bare == "list" and "describe" in command.commands
    if not lists or len(words) != 1 or any(words[0] == path[-1] for path in _breadth_first(ctx.find_root())):
        return ""
    return _typed(*_below_root(ctx).split(), "describe", words[0])


def _elsewhere(root_context: click.Context, words: Sequence[str]) -> str:
    """The command line that runs a verb of this name, nearest to the top first."""
    for path in _breadth_first(root_context):
        if path[-1] == words[0]:
            return _typed(*path, *words[1:])
    return ""


def _typed(*words: str) -> str:
    """As a shell has to be given it, without what may be secret."""
    import shlex

    return shlex.join(_without_values(words))


def _without_values(words: Sequence[str]) -> list[str]:
    """Words that set a variable, with or without the flag before them, keep its name only."""
    before = ("", *words[:-1])
    return [
        (_SET_BY_FLAG if flag == "--env" else _SET).sub(r"\1...", word)
        for flag, word in zip(before, words, strict=True)
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
    found = closest(words[0], [*ctx.command.list_commands(ctx), *ctx.command.aliases])
    return _typed(*_below_root(ctx).split(), found, *words[1:]) if found else ""


def _below_root(ctx: click.Context) -> str:
    names = []
    at: click.Context | None = ctx
    while at is not None and at.parent is not None:
        names.append(at.info_name or "")
        at = at.parent
    return " ".join(reversed(names))
