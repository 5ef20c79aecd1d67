"""Shell scripts that complete command lines of this program. Entry point: `command`."""

import click

from datum_compute.cli.shell.completion import SHELLS, script
from datum_compute.cli.shell.flags import Choice, verb
from datum_compute.cli.shell.run import Run


@verb("completion")
@click.argument("shell", type=Choice(*SHELLS), metavar="|".join(SHELLS))
def command(run: Run, shell: str) -> None:
    """Print a script that completes commands, flags and names in a shell.

    For bash: source <(compute completion bash). Names come from the project that is in use.
    """
    run.terminal.show(*script(shell, "compute").splitlines())
