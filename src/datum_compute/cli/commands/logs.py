"""Logs, which this platform does not have yet. Entry point: `command`."""

from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import verb, workload_argument
from datum_compute.cli.shell.run import Run


@verb("logs")
@workload_argument
def command(run: Run, workload: str) -> None:
    """Logs are not available yet.

    `instances describe` shows the state and the events of an instance.
    """
    raise Failure(
        "logs are not available on this platform yet",
        Exit.UNAVAILABLE,
        next_command=f"instances --workload={workload}",
    )
