"""Logs, which this platform does not have yet. Entry point: `command`."""

from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.flags import workload_argument
from datum_compute.cli.shell.run import Run


@verb("logs")
@workload_argument
def command(run: Run, workload: str) -> None:
    """Logs are not available yet.

    What is known of an instance is shown by `instances describe`.
    """
    raise Failure(
        "logs are not available on this platform yet",
        Exit.UNAVAILABLE,
        next_command=f"instances --workload={workload}",
    )
