"""Which version this is. Entry point: `command`."""

import platform

from datum_compute import __version__
from datum_compute.cli.shell.flags import command as verb
from datum_compute.cli.shell.run import Run


@verb("version", outputs=("table", "json", "yaml"))
def command(run: Run) -> None:
    """Show the version of this program."""
    if run.output == "table":
        run.terminal.show(f"{run.program} {__version__}")
    else:
        run.terminal.data({"version": __version__, "python": platform.python_version()}, run.output)
