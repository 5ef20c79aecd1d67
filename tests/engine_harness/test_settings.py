"""Which planes and ports an engine has, and that it keeps them."""

import socket
from pathlib import Path

from engine import ports
from engine.settings import Folder, Plane, Settings


def test_an_engine_has_a_hub_two_cells_and_two_projects_by_default(tmp_path: Path) -> None:
    assert Settings.read(Folder(tmp_path)).planes == [
        Plane("downstream", "hub"),
        Plane("pop-dfw", "cell", "DFW"),
        Plane("pop-ord", "cell", "ORD"),
        Plane("control-plane", "project"),
        Plane("project-b", "project"),
    ]


def test_an_added_cell_is_remembered(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    Settings.read(folder).with_cells({"pop-ams": "AMS"}, ["pop-ams"]).write(folder)

    again = Settings.read(folder).with_cells({}, [])

    assert Plane("pop-ams", "cell", "AMS", kwok=True) in again.planes
    assert Plane("pop-dfw", "cell", "DFW") in again.planes


def test_ports_are_kept_and_missing_ones_added() -> None:
    first = Settings({}).with_ports(["one", "two"])
    both = first.with_ports(["one", "two", "three"])

    assert first.ports.items() <= both.ports.items()
    assert len(set(both.ports.values())) == 3


def test_ports_are_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 < port < lowest for port in ports.choose(50))


def test_a_port_in_use_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not ports.free(server.getsockname()[1])
