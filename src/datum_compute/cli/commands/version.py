"""The version of this program. Entry point: `command`."""

import platform

from datum_compute import __version__
from datum_compute.cli.shell.flags import verb
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.views import Page, View


@verb("version", outputs=("table", "json", "yaml"))
def command(run: Run) -> View:
    """Show the version of this program."""
    document = {"version": __version__, "python": platform.python_version()}
    return View(lambda _now: Page([f"{run.program} {__version__}"]), document)
