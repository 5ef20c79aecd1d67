"""The project that a command talks to, and how it is reached. Entry points: `find_target`, `Target`.

In this order: the kubeconfig that a flag names, the platform that started us as its plugin, KUBECONFIG, a local
federation.
"""

import os
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from datum_compute import __version__
from datum_compute.cli.shell.environment import Environment
from datum_compute.cli.shell.failures import Failure, usage
from datum_compute.cli.shell.flags import is_dns_label
from datum_compute.cli.shell.run import Settings
from datum_compute.cli.show.terminal import Terminal
from datum_compute.cli.talk.credentials import HelperToken
from datum_compute.cli.talk.project import Advice, Project
from datum_compute.cli.talk.trace import trace
from datum_compute.kube.access.credentials import Credentials
from datum_compute.kube.access.kubeconfig import Endpoint, Kubeconfig, KubeconfigError
from datum_compute.kube.blocking import BlockingTransport

LOGS_URL = "DATUM_COMPUTE_LOGS_URL"

_PROJECTS = "/apis/resourcemanager.miloapis.com/v1alpha1/projects"
_CONTROL_PLANE = re.compile(
    r"(?P<root>.*?)(?:/apis/resourcemanager[^/]*/[^/]+)?/projects/(?P<project>[^/]+)/control-plane"
)


class Mode(Enum):
    STANDALONE = "a kubeconfig"
    PLUGIN = "the platform"
    LOCAL = "the local federation"


class Target(Struct, frozen=True):
    """The plane of the project, the platform above it, if there is one, and where the project's logs are read: its
    plane, unless the environment names another server."""

    mode: Mode
    project: Project
    platform: Project | None
    logs: Project
    local: bool = False  # whether it looks like a local federation
    server: str = ""  # the address of the project

    @property
    def has_catalog(self) -> bool:
        """Whether compute is a service that has to be enabled; elsewhere it is always available."""
        return self.mode is Mode.PLUGIN

    def close(self) -> None:
        for plane in filter(None, (self.project, self.platform, self.logs)):
            plane.transport.close()


class _Address(Struct, frozen=True):
    """Everything that is needed to reach a target, and to explain it in errors."""

    mode: Mode
    project: str
    endpoint: Endpoint
    sign_in: str
    origin: str
    credentials: Credentials | None = None
    files: tuple[Path, ...] = ()  # the kubeconfig


def find_target(settings: Settings, environment: Environment, terminal: Terminal) -> Target:
    try:
        address = _address(settings, environment)
        _check_url(address.endpoint.server)
    except KubeconfigError as error:
        raise usage(str(error)) from None
    if address.mode is Mode.LOCAL:
        terminal.aside(f"Using the local federation, project {address.project}.")
    return _target(address, settings, environment, terminal)


def _address(settings: Settings, environment: Environment) -> _Address:
    environ = environment.environ
    if settings.kubeconfig or settings.context:
        return _standalone(settings, kubeconfig_files(settings.kubeconfig, environ))
    if environ.get("DATUM_API_HOST"):
        return _plugin(settings, environment)
    if environ.get("KUBECONFIG"):
        project = settings.project or environ.get("DATUM_PROJECT", "")
        return _standalone(replace(settings, project=project), kubeconfig_files("", environ))
    if local := _local(settings, environment):
        return local
    if environ.get("DATUM_CREDENTIALS_HELPER"):
        raise Failure("DATUM_API_HOST is not set; is this plugin running via datumctl?")
    raise usage(
        "nothing to talk to: no --kubeconfig, no KUBECONFIG, and no federation runs on this machine", "local up"
    )


def _check_url(server: str) -> None:
    """Raises `KubeconfigError` for a URL that nothing can connect to."""
    try:
        url = urlsplit(server)
        reachable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        (url.hostname or "").encode("idna")
    except ValueError:
        reachable = False
    if not reachable or not server.isprintable() or " " in server:
        address = server.rpartition("@")[2]  # the part before it may contain a password
        raise KubeconfigError(f'"{address}" is not the address of a server; write it like https://api.example.com:443')


def _standalone(settings: Settings, files: list[Path]) -> _Address:
    """The project of a context; a project that was named must be the same."""
    config = Kubeconfig.read(files)
    project = settings.project
    context = settings.context
    if project and not context:
        context = next((name for name in config.contexts if project == _project_of_context(name) != name), "")
    endpoint = config.endpoint(context)
    context = context or config.current
    of_server = _project_in(endpoint.server)
    if project and of_server and project != of_server:
        raise usage(f'context "{context}" is project {of_server}, not {project}; choose another one with --context')
    name = project or of_server or _project_of_context(context)
    origin = f'context "{context}" of {os.pathsep.join(map(str, files))}'
    sign_in = f'check the credentials of context "{context}"'
    return _Address(Mode.STANDALONE, name, endpoint, sign_in, origin, files=tuple(files))


def _project_of_context(context: str) -> str:
    """The project in the name of a context that datumctl or a local federation wrote; else the name itself."""
    for prefix in ("datum-project-", "project-"):
        if context.startswith(prefix):
            return context.removeprefix(prefix)
    return context


def _plugin(settings: Settings, environment: Environment) -> _Address:
    environ = environment.environ
    project = settings.project or environ.get("DATUM_PROJECT", "")
    if not project:
        raise usage("no project set — pass --project or run 'datumctl ctx use <org>/<project>'")
    _check_project_name(project)
    host = environ["DATUM_API_HOST"]
    root = (host if "://" in host else f"https://{host}").rstrip("/")
    try:
        _check_url(root)
    except KubeconfigError as error:
        raise usage(f"DATUM_API_HOST: {error}") from None
    endpoint = Endpoint(
        f"{root}{_PROJECTS}/{project}/control-plane",
        ca_pem=_ca(environ),
        insecure=environ.get("DATUM_COMPUTE_INSECURE_SKIP_TLS_VERIFY") == "1",
    )
    credentials = HelperToken(environ, environment.clock, settings.request_timeout)
    return _Address(Mode.PLUGIN, project, endpoint, "run 'datumctl login'", "DATUM_API_HOST", credentials)


def _check_project_name(project: str) -> None:
    if not is_dns_label(project):
        raise usage(f'"{project}" is not a valid project name: use lower-case letters, digits and hyphens')


def _ca(environ: Mapping[str, str]) -> str:
    file = environ.get("DATUM_COMPUTE_CA_FILE", "")
    try:
        return Path(file).read_text("ascii") if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"DATUM_COMPUTE_CA_FILE {file} cannot be read: {error}") from None


def _local(settings: Settings, environment: Environment) -> _Address | None:
    """The project that was named, or the default project of the local federation if it runs."""
    from datum_compute.local import state

    directory = state.default_directory()
    running = state.running(directory)
    if running is None:
        return None
    project = settings.project or environment.environ.get("DATUM_PROJECT", "") or running.project
    _check_project_name(project)
    config = Kubeconfig.read([state.kubeconfig_path(directory)])
    endpoint = config.endpoint(f"project-{running.project}")
    root = _root(endpoint.server)
    endpoint = replace(endpoint, server=f"{root}{_PROJECTS}/{project}/control-plane")
    program = environment.program
    sign_in = f"start it again with '{program} local down' and '{program} local up'"
    return _Address(Mode.LOCAL, project, endpoint, sign_in, f"the local federation in {directory}")


def kubeconfig_files(flag: str, environ: Mapping[str, str]) -> list[Path]:
    """The kubeconfig of the flag, of the environment, or the default one."""
    text = flag or environ.get("KUBECONFIG", "")
    files = [Path(part) for part in text.split(os.pathsep) if part]
    return files or [Path.home() / ".kube" / "config"]


def _target(address: _Address, settings: Settings, environment: Environment, terminal: Terminal) -> Target:
    clock = environment.clock
    reported: set[str] = set()

    def waiting(subject: str) -> None:
        if subject not in reported:  # once is enough, however many calls follow
            reported.add(subject)
            terminal.aside(f"Still waiting for {subject} ({address.origin})...")

    def connect(endpoint: Endpoint) -> BlockingTransport:
        return BlockingTransport(
            endpoint,
            credentials=address.credentials,
            timeout=settings.request_timeout,
            agent=f"compute/{__version__}",
            pause=clock.sleep,
            monotonic=clock.monotonic,
            alarm=clock.alarm,
            waiting=waiting,
            trace=trace(settings.verbose, terminal.warn),
        )

    def plane(endpoint: Endpoint) -> Project:
        transport = (environment.connect or connect)(endpoint)
        context = address.origin if address.mode is Mode.STANDALONE else ""
        projects = "local status" if address.mode is Mode.LOCAL else ""
        advice = Advice(address.sign_in, lambda: _start_command(address), address.origin, context, projects)
        return Project(address.project, transport, advice, pause=clock.sleep, warn=terminal.warn)

    root = _root(address.endpoint.server)
    platform = plane(replace(address.endpoint, server=root)) if root else None
    project = plane(address.endpoint)
    logs = _logs_endpoint(address, environment.environ)
    local = _is_local(address) and address.endpoint.server.startswith("https://")
    reader = plane(logs) if logs is not None else project
    return Target(address.mode, project, platform, reader, local, address.endpoint.server)


def _logs_endpoint(address: _Address, environ: Mapping[str, str]) -> Endpoint | None:
    """The server that DATUM_COMPUTE_LOGS_URL names. It gets the user's token, so nobody else may read along."""
    url = environ.get(LOGS_URL, "").rstrip("/")
    if not url:
        return None
    try:
        _check_url(url)
    except KubeconfigError as error:
        raise usage(f"{LOGS_URL}: {error}") from None
    if url.startswith("http:") and not _is_loopback(url):
        raise usage(f"{LOGS_URL}: {url} is not encrypted; use https://")
    server = f"{url}/projects/{address.project}/control-plane"
    ca_pem = _ca(environ) or address.endpoint.ca_pem
    return replace(address.endpoint, server=server, ca_pem=ca_pem, server_name="")


def _start_command(address: _Address) -> str:
    """The command that starts the local federation that the kubeconfig belongs to; empty for other servers."""
    if not _is_local(address):
        return ""
    from shlex import quote

    from datum_compute.local import state

    for path in address.files:
        directory = path.absolute().parent
        if path.name == state.kubeconfig_path(directory).name and directory != state.default_directory():
            return f"local up --dir={quote(str(directory))}"
    return "local up"


def _is_local(address: _Address) -> bool:
    """Whether it looks like a local federation, which the user can start."""
    server = address.endpoint.server
    return _is_loopback(server) and address.mode is not Mode.PLUGIN and bool(_project_in(server))


def _is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _project_in(server: str) -> str:
    match = _CONTROL_PLANE.fullmatch(server)
    return match["project"] if match else ""


def _root(server: str) -> str:
    """The URL of the platform, if the server is the plane of a project below it."""
    match = _CONTROL_PLANE.fullmatch(server)
    return match["root"] if match else ""
