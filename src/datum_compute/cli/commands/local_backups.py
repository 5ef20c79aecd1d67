"""Backups of the local federation. Entry points: `backup`, `restore`."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from datum_compute.cli.shell.flags import verb
from datum_compute.cli.shell.local_directory import call, directory_flag, directory_option, state_directory

if TYPE_CHECKING:
    from datetime import datetime

    from datum_compute.cli.shell.run import Run
    from datum_compute.cli.show.views import Page, View
    from datum_compute.local.backups import Backup


@verb("backup")
@click.argument("path", metavar="[PATH]", required=False, type=click.Path(path_type=Path))
@directory_option
def backup(run: "Run", path: Path | None, directory: Path | None) -> None:
    """Copy everything that is stored to a new file, whether the federation is running or not.

    Without PATH the file is added to the backups in the state directory, and named after the current time.
    """
    from datum_compute.local import backups

    to = path.absolute() if path else None
    created = call(run, directory, backups.backup, state_directory(directory), to, run.clock.now())
    run.terminal.show(f"The local federation was copied to {path or created}.")
    name = quote(str(path)) if path else created.stem
    run.terminal.note(f"Run '{run.program} local restore {name}{directory_flag(directory)}' to go back to it.")


@verb("restore", outputs=("table", "json", "yaml", "name"))
@click.argument("backup", metavar="[BACKUP]", required=False)
@directory_option
def restore(run: "Run", backup: str | None, directory: Path | None) -> "View | None":
    """Go back to a backup; without BACKUP, list those in the state directory.

    BACKUP is a file, a name from the list or the beginning of one, or `latest` for the newest that you made. The
    federation must be stopped. Its current state is kept as a backup too, so that a restore can be undone.
    """
    from datum_compute.local import backups

    where = state_directory(directory)
    if not backup:
        return _backups(run, backups.backups(where), directory)
    restored = call(run, directory, backups.restore, where, backup, run.clock.now())
    run.terminal.show(f"The local federation was restored from {restored.source}.")
    if restored.aside is not None:
        run.terminal.show(f"The state before is kept as {restored.aside}.")
    run.terminal.note(f"Run '{run.program} local up{directory_flag(directory)}' to start it.")
    return None


def _backups(run: "Run", backups: "list[Backup]", directory: Path | None) -> "View":
    from datum_compute.cli.show.durations import age
    from datum_compute.cli.show.lines import table
    from datum_compute.cli.show.views import Page, View

    def page(now: "datetime") -> "Page":
        if not backups:
            hint = f"Run '{run.program} local backup{directory_flag(directory)}' to make one."
            return Page(["There are no backups yet."], [hint])
        rows = [
            (
                backup.name,
                age(backup.taken, now),
                f"{backup.size / 1024:.0f} KiB",
                "a restore" if backup.replaced else "backup",
            )
            for backup in backups
        ]
        hint = f"Run '{run.program} local restore NAME{directory_flag(directory)}' to go back to one."
        return Page([table(("NAME", "AGE", "SIZE", "MADE BY"), rows)], ["", hint])

    documents = {backup.name: _document(backup) for backup in backups}
    return View(page, list(documents.values()), documents)


def _document(backup: "Backup") -> dict[str, object]:
    return {
        "name": backup.name,
        "path": str(backup.path),
        "taken": backup.taken,
        "size": backup.size,
        "replaced": backup.replaced,
    }
