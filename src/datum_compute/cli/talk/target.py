"""Where a command talks to. Entry points: `find_target`, `Target`.

In this order: the kubeconfig that was named, the platform that started us as its plugin, KUBECONFIG, a federation that
runs on this machine.
"""

import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from datum_compute import __version__
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import is_name
from datum_compute.cli.shell.run import Settings
from datum_compute.cli.show.terminal import Terminal
from datum_compute.cli.talk.credentials import HelperToken
from datum_compute.cli.talk.project import Advice, Project
from datum_compute.cli.talk.trace import trace
from datum_compute.kube.access.credentials import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint, Kubeconfig, KubeconfigError
from datum_compute.kube.blocking import BlockingTransport

_PROJECTS = "/apis/resourcemanager.miloapis.com/v1alpha1/projects"
_CONTROL_PLANE = re.compile(
    r"(?P<root>.*?)(?:/apis/resourcemanager[^/]*/[^/]+)?/projects/(?P<project>[^/]+)/control-plane"
)


class Mode(Enum):
    STANDALONE = "a kubeconfig"
    PLUGIN = "the platform"
    LOCAL = "the local federation"


class Target(Struct, frozen=True):
    """The project's plane, and the platform above it where there is one."""

    mode: Mode
    project: Project
    platform: Project | None

    @property
    def has_catalog(self) -> bool:
        """Whether compute is a service there that has to be offered; elsewhere it is simply there."""
        return self.mode is Mode.PLUGIN

    def close(self) -> None:
        for side in filter(None, (self.project, self.platform)):
            side.transport.close()


class _Found(Struct, frozen=True):
    mode: Mode
    project: str
    endpoint: Endpoint
    sign_in: str
    named_by: str  # what led there, for errors
    credentials: Credentials | None = None
    files: tuple[Path, ...] = ()  # the kubeconfig


def find_target(settings: Settings, environment: Environment, terminal: Terminal) -> Target:
    try:
        found = _find(settings, environment)
        _check_address(found.endpoint.server)
    except KubeconfigError as error:
        raise usage(str(error)) from None
    if found.mode is Mode.LOCAL:
        terminal.aside(f"Using the local federation, project {found.project}.")
    return _target(found, settings, environment, terminal)


def _find(settings: Settings, environment: Environment) -> _Found:
    environ = environment.environ
    if settings.kubeconfig or settings.context:
        return _standalone(settings, kubeconfig_files(settings.kubeconfig, environ))
    if environ.get("DATUM_API_HOST"):
        return _plugin(settings, environment)
    if environ.get("KUBECONFIG"):
        named = settings.project or environ.get("DATUM_PROJECT", "")
        return _standalone(replace(settings, project=named), kubeconfig_files("", environ))
    if local := _local(settings, environment):
        return local
    if environ.get("DATUM_CREDENTIALS_HELPER"):
        raise Failure("DATUM_API_HOST is not set; is this plugin running via datumctl?")
    raise usage(
        "nothing to talk to: no --kubeconfig, no KUBECONFIG, and no federation runs on this machine", "local up"
    )


def _check_address(server: str) -> None:
    """Raises `KubeconfigError` for what no connection can be made to."""
    try:
        url = urlsplit(server)
        reachable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        (url.hostname or "").encode("idna")
    except ValueError:
        reachable = False
    if not reachable or not server.isprintable() or " " in server:
        shown = server.rpartition("@")[2]  # what stands before it may be a password
        raise KubeconfigError(f'"{shown}" is no address of a server; write it like https://api.example.com:443')


def _standalone(settings: Settings, files: list[Path]) -> _Found:
    """The context is the project, so a project that is named must be the one that the context leads to."""
    config = Kubeconfig.read(files)
    asked = settings.project
    context = settings.context
    if asked and not context:
        context = next((name for name in config.contexts if asked == _named_by(name) != name), "")
    endpoint = config.endpoint(context)
    context = context or config.current
    leads_to = _project_in(endpoint.server)
    if asked and leads_to and asked != leads_to:
        raise usage(f'context "{context}" is project {leads_to}, not {asked}; choose another one with --context')
    name = asked or leads_to or _named_by(context)
    named_by = f'context "{context}" of {os.pathsep.join(map(str, files))}'
    sign_in = f'check the credentials of context "{context}"'
    return _Found(Mode.STANDALONE, name, endpoint, sign_in, named_by, files=tuple(files))


def _named_by(context: str) -> str:
    """The project that a context is for, as datumctl and the local federation call theirs; else its own name."""
    for prefix in ("datum-project-", "project-"):
        if context.startswith(prefix):
            return context.removeprefix(prefix)
    return context


def _plugin(settings: Settings, environment: Environment) -> _Found:
    environ = environment.environ
    project = settings.project or environ.get("DATUM_PROJECT", "")
    if not project:
        raise usage("no project set — pass --project or run 'datumctl ctx use <org>/<project>'")
    if not is_name(project):
        raise usage(f'"{project}" is no project name: use lower-case letters, digits and hyphens')
    host = environ["DATUM_API_HOST"]
    root = (host if "://" in host else f"https://{host}").rstrip("/")
    try:
        _check_address(root)
    except KubeconfigError as error:
        raise usage(f"DATUM_API_HOST: {error}") from None
    endpoint = Endpoint(
        f"{root}{_PROJECTS}/{project}/control-plane",
        ca_pem=_ca(environ),
        insecure=environ.get("DATUM_COMPUTE_INSECURE_SKIP_TLS_VERIFY") == "1",
    )
    credentials = HelperToken(environ, environment.clock, settings.request_timeout)
    return _Found(Mode.PLUGIN, project, endpoint, "run 'datumctl login'", "DATUM_API_HOST", credentials)


def _ca(environ: Mapping[str, str]) -> str:
    file = environ.get("DATUM_COMPUTE_CA_FILE", "")
    try:
        return Path(file).read_text("ascii") if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"DATUM_COMPUTE_CA_FILE {file} cannot be read: {error}") from None


def _local(settings: Settings, environment: Environment) -> _Found | None:
    """Its default project, unless another one is named; whether that exists is for the server to say."""
    from datum_compute.local import state

    directory = state.default_directory()
    running = state.running(directory)
    if running is None:
        return None
    named = environment.environ.get("DATUM_PROJECT", "")
    project = settings.project or named or running.project
    if not is_name(project):
        raise usage(f'"{project}" is no project name: use lower-case letters, digits and hyphens')
    config = Kubeconfig.read([state.kubeconfig_path(directory)])
    endpoint = config.endpoint(f"project-{running.project}")
    root = _root(endpoint.server)
    endpoint = replace(endpoint, server=f"{root}{_PROJECTS}/{project}/control-plane")
    program = environment.program
    sign_in = f"start it again with '{program} local down' and '{program} local up'"
    return _Found(Mode.LOCAL, project, endpoint, sign_in, f"the local federation in {directory}")


def kubeconfig_files(named: str, environ: Mapping[str, str]) -> list[Path]:
    """The kubeconfig that is named, the environment's, or the usual one."""
    text = named or environ.get("KUBECONFIG", "")
    files = [Path(part) for part in text.split(os.pathsep) if part]
    return files or [Path.home() / ".kube" / "config"]


def _target(found: _Found, settings: Settings, environment: Environment, terminal: Terminal) -> Target:
    clock = environment.clock
    told: set[str] = set()

    def waiting(what: str) -> None:
        if what not in told:  # once is enough, however many calls follow
            told.add(what)
            terminal.aside(f"Still waiting for {what} ({found.named_by})...")

    def connected(endpoint: Endpoint) -> BlockingTransport:
        return BlockingTransport(
            endpoint,
            credentials=found.credentials,
            timeout=settings.request_timeout,
            agent=f"compute/{__version__}",
            pause=clock.sleep,
            monotonic=clock.monotonic,
            alarm=clock.alarm,
            waiting=waiting,
            trace=trace(settings.verbose, terminal.warn),
        )

    def reached(endpoint: Endpoint) -> Project:
        transport = (environment.connect or connected)(endpoint)
        context = found.named_by if found.mode is Mode.STANDALONE else ""
        advice = Advice(found.sign_in, lambda: _start(found), found.named_by, context)
        return Project(found.project, transport, advice, pause=clock.sleep, warn=terminal.warn)

    root = _root(found.endpoint.server)
    platform = reached(replace(found.endpoint, server=root)) if root else None
    return Target(found.mode, reached(found.endpoint), platform)


def _start(found: _Found) -> str:
    """The command that starts the federation again whose kubeconfig it is; one in the usual place needs no name."""
    if not _is_ours(found):
        return ""
    from datum_compute.local import state

    for path in found.files:
        directory = path.absolute().parent
        if path.name == state.kubeconfig_path(directory).name and directory != state.default_directory():
            return f"local up --dir={quote(str(directory))}"
    return "local up"


def _is_ours(found: _Found) -> bool:
    """Whether it looks like a federation on this machine, which the user can start."""
    host = urlsplit(found.endpoint.server).hostname or ""
    on_this_machine = host in ("localhost", "::1") or host.startswith("127.")
    return on_this_machine and found.mode is not Mode.PLUGIN and bool(_project_in(found.endpoint.server))


def _project_in(server: str) -> str:
    match = _CONTROL_PLANE.fullmatch(server)
    return match["project"] if match else ""


def _root(server: str) -> str:
    """The platform's address, when the server is a project below it."""
    match = _CONTROL_PLANE.fullmatch(server)
    return match["root"] if match else ""
