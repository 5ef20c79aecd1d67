"""The command line and the environment of compute-manager. Entry points: `FLAGS`, `Flags`, `parse`, `parse_check`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec import Struct

from datum_compute.runtime.telemetry.logs import ENCODERS, LEVELS


class UsageError(Exception):
    """One sentence on what is wrong with the command line or the environment."""


class Flags(Struct, frozen=True):
    """The values of all flags; `FLAGS` describes them."""

    server_config: str = ""
    kubeconfig: str = ""
    federation_kubeconfig: str = ""
    federation_context: str = ""
    enable_management_controllers: bool = False
    enable_cell_controllers: bool = False
    stand_alone_cell: bool = False
    provider: str = "none"
    builtins: str = ""
    recreate_denied_claims: bool = True
    abandon_claims_after_seconds: str = "3600"
    remove_leftovers: bool = True
    leftover_grace_seconds: str = "60"
    feature_gates: str = ""
    trust_project_kubeconfigs: bool = False
    leader_elect: bool = False
    leader_elect_namespace: str = ""
    health_probe_bind_address: str = ":8081"
    webhook_client_ca: str = ""
    shutdown_delay_seconds: str = ""
    log_level: str = "info"
    log_format: str = "json"


class Flag(Struct, frozen=True):
    """`value` is the placeholder for its value in help and docs; a switch has none."""

    name: str
    help: str
    value: str = ""
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that is read when the flag is absent."""
        return self.field.upper()

    @property
    def default(self) -> Any:
        return getattr(Flags(), self.field)

    def read(self, text: str) -> str | bool:
        if not self.value:
            return _switch(text)
        if self.choices and text not in self.choices:
            raise argparse.ArgumentTypeError(f'"{text}" is not one of {", ".join(self.choices)}')
        return text


FLAGS = (
    Flag("server-config", "The config file. Required.", "FILE"),
    Flag("kubeconfig", "The cluster this process works for; by default the one it runs in.", "FILE"),
    Flag("federation-kubeconfig", "The hub.", "FILE"),
    Flag("federation-context", "The context in that kubeconfig; by default the current one.", "NAME"),
    Flag("enable-management-controllers", "Run the controllers of the management plane."),
    Flag("enable-cell-controllers", "Run the controllers of a cell."),
    Flag("stand-alone-cell", "Let a cell run without a hub. Its Instances are then visible nowhere else."),
    Flag("provider", "What runs the Instances of this cell: none, simulated or pods.", "NAME"),
    Flag(
        "builtins",
        "Built-ins to run, separated by commas: quota, network, entitlement, locations.",
        "NAMES",
    ),
    Flag("recreate-denied-claims", "Claim quota again, slowly, after it was denied."),
    Flag(
        "abandon-claims-after-seconds",
        "How long a project must refuse to delete a quota claim before its Instance is deleted anyway; 0 means never.",
        "SECONDS",
    ),
    Flag("remove-leftovers", "Delete leftovers of withdrawn deployments; when false, keep and report them."),
    Flag(
        "leftover-grace-seconds",
        "How long the original of a deployment must be missing before its copy counts as a leftover.",
        "SECONDS",
    ),
    Flag("feature-gates", "Features to switch on or off, separated by commas: Name=true,Other=false.", "GATES"),
    Flag(
        "trust-project-kubeconfigs",
        "Let the kubeconfigs of projects run programs, send local files as tokens, and call servers without TLS.",
    ),
    Flag("leader-elect", "Let one of several replicas work while the others stand by."),
    Flag("leader-elect-namespace", "The namespace of the lease; by default the one this process runs in.", "NAMESPACE"),
    Flag("health-probe-bind-address", "The address of /healthz and /readyz; 0 disables them.", "ADDRESS"),
    Flag(
        "webhook-client-ca",
        "Answer only API servers that present a certificate signed by this authority; by default anybody.",
        "FILE",
    ),
    Flag(
        "shutdown-delay-seconds",
        "How long to keep running, not ready, after a request to stop; by default as in the config file.",
        "SECONDS",
    ),
    Flag("log-level", f"The lowest level that is logged: {', '.join(LEVELS)}.", "LEVEL", tuple(LEVELS)),
    Flag("log-format", f"The format of log lines: {', '.join(ENCODERS)}.", "FORMAT", ENCODERS),
)


CHECK = "check"
"""The word before the flags with which the process only checks whether it could start with them."""

OUTPUTS = ("table", "json")


def parse(arguments: Sequence[str], environment: Mapping[str, str], version: str) -> Flags:
    """A flag overrides its variable, and a variable the default; an empty variable counts as not set.

    Raises `UsageError`; `--help` and `--version` print and end the process.
    """
    description = "Runs the controllers of federated compute: those of the management plane, of a cell, or both."
    parser = _parser("compute-manager", description, environment, version)
    return Flags(**vars(parser.parse_args(arguments)))


class CheckFlags(Struct, frozen=True):
    """What only a check has."""

    output: str
    running: bool


def parse_check(arguments: Sequence[str], environment: Mapping[str, str], version: str) -> tuple[Flags, CheckFlags]:
    """The flags behind the word `check`: those of a start, and its own."""
    description = "Checks whether compute-manager could start and work with the same flags. Changes nothing."
    parser = _parser(f"compute-manager {CHECK}", description, environment, version)
    parser.add_argument(
        "-o", "--output", choices=OUTPUTS, default=OUTPUTS[0], help="The form of the output (default: table)."
    )
    parser.add_argument(
        "--running", action="store_true", help="The process runs here already, so its addresses have to be in use."
    )
    values = vars(parser.parse_args(arguments))
    own = CheckFlags(values.pop("output"), values.pop("running"))
    return Flags(**values), own


def _parser(program: str, description: str, environment: Mapping[str, str], version: str) -> "_Parser":
    parser = _Parser(
        prog=program,
        allow_abbrev=False,
        description=description,
        epilog=f"Each flag can be set by an environment variable: --leader-elect is LEADER_ELECT. "
        f"compute-manager {CHECK}, with the same flags, only checks whether it could start with them.",
    )
    parser.add_argument("--version", action="version", version=f"compute-manager {version}")
    for flag in FLAGS:
        switch: dict[str, Any] = {} if flag.value else {"nargs": "?", "const": True}
        parser.add_argument(
            f"--{flag.name}",
            dest=flag.field,
            metavar=flag.value or "true|false",
            type=flag.read,
            default=_from(environment, flag),
            help=f"{flag.help} (default: {_default_text(flag.default)})"
            if flag.default not in ("", False)
            else flag.help,
            **switch,
        )
    return parser


def _from(environment: Mapping[str, str], flag: Flag) -> Any:
    text = environment.get(flag.variable, "")
    if not text:
        return flag.default
    try:
        return flag.read(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"environment variable {flag.variable}: {error}") from None


def _switch(text: str) -> bool:
    values = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f'"{text}" is neither true nor false')
    return values[text.lower()]


def _default_text(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))
