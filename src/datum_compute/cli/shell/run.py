"""One invocation of a verb: settings, terminal, clock and, if it needs one, the project. Entry points: `Run`,
`project`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from msgspec import MsgspecError, Struct
from msgspec.structs import asdict

from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import LONGEST_CALL_SECONDS, one_of, with_target_flags
from datum_compute.cli.show import durations
from datum_compute.cli.show.terminal import Style, Terminal

if TYPE_CHECKING:
    from datum_compute.cli.show.views import View, Watch
    from datum_compute.cli.talk.project import Project
    from datum_compute.cli.talk.target import Target
    from datum_compute.cli.talk.tracing import CommandTrace
    from datum_compute.cli.talk.watching import Changes
    from datum_compute.kube.transport import Call


class Settings(Struct, frozen=True):
    """The global flags, with defaults from the environment."""

    output: str = ""  # empty: the default format of the verb
    project: str = ""  # only the flag; `target` reads the environment where it counts
    color: str = "auto"
    quiet: bool = False
    no_headers: bool = False
    request_timeout: float = 30.0
    verbose: int = 0
    kubeconfig: str = ""
    context: str = ""

    @classmethod
    def of(cls, flags: Mapping[str, Any], environ: Mapping[str, str]) -> "Settings":
        return cls(
            output=flags.get("output", ""),
            project=flags.get("project", ""),
            color=flags.get("color", "auto"),
            quiet=flags.get("quiet", _is_set(environ.get("DATUM_COMPUTE_QUIET"))),
            no_headers=flags.get("no_headers", False),
            request_timeout=flags.get("request_timeout") or _timeout(environ),
            verbose=flags.get("verbose") or _level(environ.get("DATUM_COMPUTE_VERBOSE", "")),
            kubeconfig=flags.get("kubeconfig", ""),
            context=flags.get("context", ""),
        )


def _is_set(value: str | None) -> bool:
    return (value or "").lower() not in ("", "0", "false", "no")


def _level(text: str) -> int:
    return int(text) if text.isdecimal() else int(_is_set(text))


def _timeout(environ: Mapping[str, str]) -> float:
    text = environ.get("DATUM_COMPUTE_REQUEST_TIMEOUT") or "30s"
    try:
        return durations.parse(text, LONGEST_CALL_SECONDS) or 30.0
    except ValueError as error:
        raise usage(f"DATUM_COMPUTE_REQUEST_TIMEOUT: {error}") from None


class Run:
    """One invocation, a context manager that closes its connections. `output` is the format to use."""

    def __init__(self, environment: Environment, settings: Settings, output: str, command: str = "") -> None:
        self.environment = environment
        self.settings = settings
        self.output = output
        self.command = command
        self._target: Target | None = None
        self._trace: CommandTrace | None = None
        self.program = environment.program
        self.clock = environment.clock
        self.began = self.clock.now()
        self.terminal = Terminal(
            environment,
            Style(output=output, color=settings.color, quiet=settings.quiet, headers=not settings.no_headers),
        )

    @classmethod
    def of(cls, environment: Environment, flags: Mapping[str, Any], outputs: Sequence[str], command: str = "") -> "Run":
        """`outputs` are the formats that the verb supports, its default first. `command` is how the verb is called."""
        settings = Settings.of(flags, environment.environ)
        output = settings.output or outputs[0]
        if output == "table" and outputs[0] == "text":  # the default elsewhere
            output = "text"
        if output not in outputs:
            raise usage(f'unsupported output format "{output}": use {one_of(outputs)}')
        return cls(environment, settings, output, command)

    @property
    def wide(self) -> bool:
        return self.output == "wide"

    def show(self, result: "View | Watch") -> None:
        from datum_compute.cli.show.views import show

        show(self, result)

    def connect(self) -> None:
        """Finds the project and how to reach it; sends nothing yet."""
        from datum_compute.cli.talk.target import find_target

        self._target = find_target(self.settings, self.environment, self.terminal)

    @property
    def target(self) -> "Target":
        if self._target is None:
            raise RuntimeError("the verb uses a project without declaring that it needs one")
        return self._target

    @property
    def project(self) -> "Project":
        return self.target.project

    @property
    def trace(self) -> "CommandTrace":
        if self._trace is None:
            from datum_compute.cli.talk.tracing import CommandTrace

            self._trace = CommandTrace(self.environment, self.command, self.began, self.terminal.warn)
        return self._trace

    def watching(self, calls: Sequence["Call"]) -> AbstractContextManager["Changes"]:
        """Waits for changes that these watch calls report; a test brings its own way to wait."""
        from datum_compute.cli.talk.watching import watch

        return (self.environment.watching or watch)(self.project.transport, calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Closes open connections, and reports an object that could not be decoded as a failure of the server."""
        if self._target is not None:
            self._target.close()
        if self._trace is not None:
            self._trace.end(error)
        if isinstance(error, MsgspecError):
            raise Failure(f"the server sent an object that makes no sense: {error}") from error

    def try_next(self, command: str) -> str:
        """A command of ours as the user would type it, for the same target."""
        return f"{self.program} {with_target_flags(command, asdict(self.settings))}"


def project(run: Run) -> None:
    """The need of a verb for a project to talk to."""
    run.connect()
