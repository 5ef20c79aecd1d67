"""The file that says which containers are ours."""

import shutil
from pathlib import Path

import pytest

from datum_compute.local.choice import CONTAINERS
from datum_compute.local.containers import Record, machine, recall, remember
from datum_compute.local.state import LocalError, Paths

IDS = [f"{number:032x}" for number in range(10)]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    folder = tmp_path / "state"
    folder.mkdir()
    return Paths(folder)


def test_a_new_directory_gets_an_id_and_keeps_it(paths: Paths) -> None:
    first = recall(paths)
    assert first.former is None
    assert len(first.record.id) == 32
    assert first.record.instances == ""
    assert not paths.containers.exists(), "nothing is remembered before something was chosen"
    remember(paths, first.record)
    assert recall(paths) == first
    assert paths.containers.stat().st_mode & 0o777 == 0o600


def test_a_directory_reached_by_another_name_is_the_same_one(paths: Paths, tmp_path: Path) -> None:
    remember(paths, recall(paths).record)
    (tmp_path / "link").symlink_to(paths.directory)
    assert recall(Paths(tmp_path / "link")) == recall(paths)


@pytest.mark.parametrize("how", ["copied", "moved", "on another machine"])
def test_a_record_found_elsewhere_gets_a_new_id_and_the_old_one_is_only_named(
    paths: Paths, tmp_path: Path, how: str
) -> None:
    record = Record(IDS[1], str(paths.directory), "this", CONTAINERS, "unix:///run/engine.sock", "Podman 4.3.1")
    remember(paths, record)
    here, host = paths, "this"
    if how == "copied":
        here = Paths(Path(shutil.copytree(paths.directory, tmp_path / "copy")))
    elif how == "moved":
        here = Paths(paths.directory.rename(tmp_path / "moved"))
    else:
        host = "another"
    recalled = recall(here, lambda: host, lambda: IDS[2])
    assert recalled.former == record
    assert recalled.former.label == f"compute.datumapis.com/local={IDS[1]}"
    assert recalled.record == Record(IDS[2], str(here.directory), host, CONTAINERS), "and no engine holds any of it"


def test_a_damaged_record_is_refused_and_left_unchanged(paths: Paths) -> None:
    for content in (b"{", b'{"id": 5}', b'{"id": "../..", "directory": "", "machine": ""}'):
        paths.containers.write_bytes(content)
        with pytest.raises(LocalError, match=r"containers\.json .*remove the file to start with a new"):
            recall(paths)
        assert paths.containers.read_bytes() == content


def test_the_id_of_the_machine_is_not_given_away() -> None:
    source = Path("/etc/machine-id")
    if source.exists() and source.read_text().strip():
        assert len(machine()) == 32
        assert machine() != source.read_text().strip()
