"""The lock of a directory: held by one process, and only as long as its file is the one that others find."""

import fcntl
import os
from pathlib import Path

import pytest

from datum_compute.local.state import hold, holder, is_locked


def test_a_lock_is_held_by_one_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("12345678")
    lock = hold(path)
    assert (is_locked(path), holder(path)) == (True, os.getpid())
    with pytest.raises(BlockingIOError):
        hold(path)
    os.close(lock)
    assert not is_locked(path)


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock, calls = tmp_path / "lock", fcntl.flock, 0

    def late(file: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            path.unlink()  # as a reset does, which had the lock until now
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = hold(path)
    assert (calls, is_locked(path)) == (2, True)
    os.close(lock)
