"""What `up` settles before it starts anything; with nothing built, that is as far as it gets."""

import os
import socket
from pathlib import Path

import pytest
import yaml

from datum_compute.kube.access.kubeconfig import load
from engine import EngineError
from engine.harness import Engine
from engine.processes import State
from engine.settings import Folder, Settings

PLANES = ["control-plane", "downstream", "pop-dfw", "pop-ord", "project-b"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Engine(tmp_path / "engine")


def up(engine: Engine, cells: dict[str, str] | None = None) -> None:
    with pytest.raises(EngineError, match="etcd is not built from the current pins; run `make engine`"):
        engine.up(cells)


def ports(engine: Engine) -> dict[str, int]:
    return Settings.read(Folder(engine.folder.root)).ports


def test_missing_binaries_are_reported_before_anything_starts(engine: Engine) -> None:
    up(engine)
    assert {row.state for row in engine.status()} == {State.STOPPED}
    assert not engine.is_up()


def test_every_plane_has_a_kubeconfig_that_only_its_owner_reads(engine: Engine) -> None:
    up(engine)
    assert sorted(file.stem for file in engine.folder.kubeconfigs.iterdir()) == PLANES
    for plane in PLANES:
        path = engine.kubeconfig(plane)
        assert path.stat().st_mode & 0o777 == 0o600
        assert load([path]).server == f"https://127.0.0.1:{ports(engine)[f'{plane}-apiserver']}"


def test_an_engine_to_install_on_has_members_without_cities_and_stays_empty(engine: Engine) -> None:
    with pytest.raises(EngineError, match="not built"):
        engine.up(empty=True)
    up(engine)
    cities = {plane.name: plane.city for plane in engine.planes()}
    assert cities == {"downstream": "", "pop-dfw": "", "pop-ord": "", "control-plane": ""}
    [connection] = yaml.safe_load(engine.folder.egress.read_text())["egressSelections"]
    assert connection["connection"]["transport"] == {"uds": {"udsName": str(engine.folder.services)}}


def test_an_engine_with_compute_does_not_become_empty(engine: Engine) -> None:
    up(engine)
    with pytest.raises(EngineError, match="is not empty; remove it, or name another folder"):
        engine.up(empty=True)


def test_every_process_is_known_by_name(engine: Engine) -> None:
    up(engine)
    assert [row.name for row in engine.status()] == [
        *("etcd", "downstream-etcd", "project-b-etcd"),
        *(f"{plane}-apiserver" for plane in ("downstream", "pop-dfw", "pop-ord", "control-plane", "project-b")),
        *(f"{plane}-controllers" for plane in ("downstream", "pop-dfw", "pop-ord", "control-plane", "project-b")),
        "karmada-aggregated-apiserver",
        "karmada-webhook",
        "karmada-controller-manager",
        "karmada-scheduler",
    ]


def test_ports_and_cells_are_remembered(engine: Engine) -> None:
    up(engine, {"pop-ams": "AMS"})
    before = ports(engine)
    up(engine)
    assert ports(engine) == before
    assert "pop-ams-apiserver" in [row.name for row in engine.status()]


def test_a_port_that_is_taken_meanwhile_is_replaced(engine: Engine) -> None:
    up(engine)
    before = ports(engine)
    with socket.create_server(("127.0.0.1", before["etcd"])):
        up(engine)
        assert before["etcd"] not in ports(engine).values()


def test_remove_forgets_everything(engine: Engine) -> None:
    up(engine)
    engine.remove()
    assert os.listdir(engine.folder.root) == ["lock"]
    assert engine.status() == []
