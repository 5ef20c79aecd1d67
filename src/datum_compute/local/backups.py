"""Backups of a federation's state, and restoring them. Entry points: `backup`, `backups`, `restore`.

A federation can be copied while it runs. To go back it must be down; what it had until then is kept as one more backup.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from datum_compute.local.state import LocalError, Paths, hold

LATEST = "latest"
_SUFFIX = ".db"
_REPLACED = "replaced-"  # how the names of those begin that a restore made
_BESIDE = ("-wal", "-shm", "-journal")


class Backup(Struct, frozen=True):
    name: str
    path: Path
    taken: datetime
    size: int

    @property
    def replaced(self) -> bool:
        """Whether a restore put it aside."""
        return self.name.startswith(_REPLACED)


class Restored(Struct, frozen=True):
    """The file that was restored, and where the previous state is now; None if there was none."""

    source: Path
    aside: Path | None


def backup(directory: Path, to: Path | None, now: datetime) -> Path:
    """Copies the state as it is at this moment, whether the federation runs or not.

    Without a name for the file it goes to the other backups, named after the time.
    """
    from datum_compute.embedded.storage.log import LogError, copy

    source = Paths(directory).log
    if not source.exists():
        raise LocalError(f"there is nothing to back up in {directory}; start a federation with 'compute local up'")
    to = to or _new(directory, now)
    try:
        os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise LocalError(f"{to} exists already; choose another name for the backup") from None
    except OSError as error:
        raise LocalError(f"cannot write to {to}: {error.strerror}; choose another place for the backup") from None
    try:
        copy(source, to)
    except BaseException as error:
        to.unlink(missing_ok=True)  # half a backup is worse than none
        if isinstance(error, LogError):
            raise LocalError(f"the backup was not made: {error}") from None
        raise
    return to


def backups(directory: Path) -> list[Backup]:
    """The backups in the state directory, newest first."""
    entries = []
    for path in Paths(directory).backups.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            facts = path.stat()
            taken = datetime.fromtimestamp(facts.st_mtime, UTC)
            entries.append(Backup(path.stem, path, taken, facts.st_size))
    return sorted(entries, key=lambda entry: (entry.taken, entry.name), reverse=True)


def restore(directory: Path, wanted: str, now: datetime) -> Restored:
    """Restores a backup. `wanted` is a file, a name, the beginning of one, or `latest`: the newest one made by hand.

    Whatever goes wrong, the state is either what it was or the backup.
    """
    from datum_compute.embedded.storage.log import LogError, copy

    with _down(directory) as paths:
        source = _chosen(wanted, backups(directory), directory)
        fresh = paths.log.with_name(f"{paths.log.name}.restored")
        fresh.unlink(missing_ok=True)
        try:
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            copy(source, fresh)  # checks it as well
            aside = _put_aside(paths, now) if paths.log.exists() else None
            os.replace(fresh, paths.log)
        except LogError as error:
            raise LocalError(f"nothing was restored: {error}") from None
        except OSError as error:
            raise LocalError(f"nothing was restored: cannot write to {directory}: {error.strerror}") from None
        finally:
            fresh.unlink(missing_ok=True)
    return Restored(source, aside)


@contextmanager
def _down(directory: Path) -> Iterator[Paths]:
    """Prevents a federation from being started meanwhile; raises if one is running."""
    paths = Paths(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = hold(paths.lock)
    except BlockingIOError:
        raise LocalError(
            "the local federation is running; stop it with 'compute local down' before a backup is restored"
        ) from None
    except OSError as error:
        raise LocalError(
            f"cannot write to {directory}: {error.strerror}; choose another directory with --dir"
        ) from None
    try:
        yield paths
    finally:
        os.close(lock)


def _chosen(wanted: str, known: Sequence[Backup], directory: Path) -> Path:
    exact = [entry.path for entry in known if wanted in (entry.name, entry.path.name)]
    if exact:
        return exact[0]
    made = [entry.path for entry in known if not entry.replaced]
    if wanted == LATEST and made:
        return made[0]
    if Path(wanted).is_file():
        return Path(wanted)
    started = [entry for entry in known if wanted and entry.name.startswith(wanted)]
    if len(started) == 1:
        return started[0].path
    if started:
        names = ", ".join(entry.name for entry in started)
        raise LocalError(f'"{wanted}" is the beginning of {len(started)} backups; choose one of {names}')
    if known:
        raise LocalError(
            f'there is no backup "{wanted}", neither a file nor in {Paths(directory).backups}; '
            f"choose one of {', '.join(entry.name for entry in known)}"
        )
    raise LocalError(
        f"there is no file \"{wanted}\" and no backup in {directory}; make one with 'compute local backup'"
    )


def _put_aside(paths: Paths, now: datetime) -> Path:
    """Saves the state that is replaced as a backup, or as its files if it is damaged."""
    from datum_compute.embedded.storage.log import LogError

    aside = _new(paths.directory, now, _REPLACED)
    try:
        backup(paths.directory, aside, now)
    except LocalError as error:
        if not isinstance(error.__context__, LogError):
            raise
        aside = aside.with_suffix(f"{_SUFFIX}.damaged")
        for end in ("", *_BESIDE):
            with suppress(FileNotFoundError):
                os.replace(f"{paths.log}{end}", f"{aside}{end}")
        return aside
    for end in _BESIDE:  # they belong to the replaced file and would corrupt the new one
        Path(f"{paths.log}{end}").unlink(missing_ok=True)
    return aside


def _new(directory: Path, now: datetime, prefix: str = "") -> Path:
    """An unused path among the backups."""
    folder = Paths(directory).backups
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot write to {folder}: {error.strerror}; name another file for the backup") from None
    name = f"{prefix}{now.astimezone(UTC):%Y-%m-%dT%H%M%SZ}"
    taken = {path.name for path in folder.iterdir()}
    names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
    return folder / next(f"{name}{_SUFFIX}" for name in names if f"{name}{_SUFFIX}" not in taken)
