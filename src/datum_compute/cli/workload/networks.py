"""The networks that a workload attaches to. Entry point: `check_networks`."""

from collections.abc import Iterable

from datum_compute.api.networking import NETWORK
from datum_compute.cli.shell.failures import Failure
from datum_compute.cli.shell.run import Run


def check_networks(run: Run, names: Iterable[str], *, yes: bool, dry_run: bool) -> None:
    """Checks that all networks exist; creates a missing one if the user agrees."""
    project = run.project.name
    for name in filter(None, names):
        if run.project.find(NETWORK, name) is not None:
            continue
        if run.project.list_served(NETWORK) is None:
            return  # the plane does not serve networks
        run.terminal.note(f'  Network "{name}" does not exist in project {project}.')
        if dry_run:
            continue
        if not yes and not run.terminal.asks:
            raise Failure(
                f'network "{name}" not found in project {project} — use --yes to auto-create or create it first'
            )
        if not yes and not run.terminal.confirm("  Create it now? (Y/n): ", default=True):
            raise Failure(f'network "{name}" is required; answer yes, pass --yes, or create it first')
        run.project.create(NETWORK, NETWORK.body(name, "default") | {"spec": {"ipam": {"mode": "Auto"}}})
        run.terminal.note(f"  network/{name} created")
