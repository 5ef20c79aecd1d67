"""Commands of users: who may run them, what is recorded, what limits them, and how they end."""

import pytest
import structlog

from datum_compute.api.instance import INSTANCE
from datum_compute.federation.identity import hub_labels
from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.kube.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unavailable,
    Unsupported,
)
from datum_compute.kube.meta import Json
from datum_compute.runtime.testing.simulation import Simulation
from datum_compute.telemetry.exec.channels import SUBPROTOCOL, Ended, Exited
from datum_compute.telemetry.exec.door import Limits, NotRunning
from tests.sessions import FakeSession
from tests.telemetry.exec_world import NAME, USER, Peer, World, condition, running, spec

STOPPED = Ended(f'instance "{NAME}" was stopped or replaced, and the session with it', "Gone", 410)


async def started(simulation: Simulation, limits: Limits | None = None, *, simulated: bool = False) -> World:
    world = World(simulation, limits=limits, simulated=simulated)
    await world.start()
    return world


# What a command does


@pytest.mark.parametrize(
    ("arguments", "stdout", "stderr", "end"),
    [
        (("echo", "a", "b c"), b"a b c\n", b"", Exited(0)),
        (("complain",), b"", b"no such thing\n", Exited(1)),
        (("exit", "0"), b"", b"", Exited(0)),
        (("exit", "3"), b"", b"", Exited(3)),
        (("exit", "255"), b"", b"", Exited(255)),
        (("flood", "1000000"), b"x" * 1_000_000, b"", Exited(0)),
        (("exit", "137"), b"", b"", Exited(137)),
    ],
)
async def test_output_and_exit_code_arrive(
    simulation: Simulation, arguments: tuple[str, ...], stdout: bytes, stderr: bytes, end: Exited
) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect(*arguments)
    assert await peer.ended() == end
    assert (peer.accepted, peer.stdout, peer.stderr, peer.close_code) == (SUBPROTOCOL, stdout, stderr, 1000)
    assert world.runner.places == [("cell-dfw", world.namespace, NAME, "cell-uid")]
    assert world.runner.sessions[0].closed.is_set()


async def test_input_arrives_and_ends(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("cat", stdin=True)
    for number in range(200):
        peer.type(b"%d " % number + b"x" * 50_000)
    peer.end_input()
    assert await peer.ended() == Exited(0)
    assert peer.stdout == b"".join(b"%d " % number + b"x" * 50_000 for number in range(200))


async def test_input_ends_once_however_often_a_client_says_so(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client could have any number of ends wait for a command that does not read."""
    world = await started(simulation)
    await world.add()
    pieces: list[bytes] = []

    async def write(_: FakeSession, data: bytes = b"") -> None:
        pieces.append(data)

    monkeypatch.setattr(FakeSession, "write", write)
    monkeypatch.setattr(FakeSession, "end_input", write)
    peer = world.connect("sleep", stdin=True)
    peer.type(b"abc")
    for _ in range(3):
        peer.end_input()
        peer.type(b"too late")
    await simulation.settle()
    assert pieces == [b"abc", b""]
    peer.leave()
    await peer.task


async def test_input_is_ignored_unless_the_client_asked_to_send_some(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("sleep")
    peer.type(b"abc")
    peer.end_input()
    await peer.until(b"sleeping")
    assert world.runner.sessions[0]._input.empty()
    peer.leave()
    await peer.task


async def test_the_size_of_the_terminal_arrives_while_the_command_reads_nothing(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("size", "2", stdin=True, tty=True)
    for _ in range(50):
        peer.type(b"x" * 10_000)
    peer.resize(80, 24)
    peer.resize(100, 40)
    assert await peer.ended() == Exited(0)
    assert peer.stdout == b"80x24\r\n100x40\r\n"


async def test_output_waits_for_a_client_that_does_not_read(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("flood", "10000000")
    await peer.until(b"x")
    peer.stop_reading()
    await simulation.advance(3600)
    assert not peer.task.done()
    peer.read_on()
    assert await peer.ended() == Exited(0)
    assert len(peer.stdout) == 10_000_000


# Who may


async def test_a_refused_caller_starts_nothing(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    world.refusal = Forbidden("you may not")
    with pytest.raises(Forbidden):
        await world.connect("echo").task
    assert (world.reviews, world.runner.places, await world.events()) == ([("demo", "default", NAME)], [], [])


async def test_a_caller_is_reviewed_before_anything_else_is_said(simulation: Simulation) -> None:
    world = await started(simulation)
    world.refusal = Forbidden("you may not")
    with pytest.raises(Forbidden):
        await world.connect("", name="missing").task


# What is recorded


async def test_a_session_is_recorded_on_the_instance_without_its_arguments(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    with structlog.testing.capture_logs() as logs:
        await world.connect("echo", "hunter2", tty=True).task
        await world.connect("exit", "3").task
    assert await world.events() == [
        ("Exec", f'{USER} runs "echo" in container app, in a terminal'),
        ("Exec", f'{USER} runs "exit" in container app'),
    ]
    assert [entry["event"] for entry in logs] == ["command started", "command ended"] * 2
    assert [entry.get("outcome") for entry in logs] == [None, "exit code 0", None, "exit code 3"]
    assert all(entry["user"] == USER and entry["instance"] == NAME for entry in logs)
    assert "hunter2" not in repr(logs)


async def test_without_a_record_there_is_no_session(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await started(simulation)
    await world.add()

    async def refuse(*_: object) -> None:
        raise Forbidden("events is forbidden")

    monkeypatch.setattr(world.places, "record", refuse)
    with pytest.raises(Forbidden):
        await world.connect("echo").task
    assert world.runner.places == []


# What cannot be run in


async def test_an_instance_that_does_not_exist_is_not_found(simulation: Simulation) -> None:
    world = await started(simulation)
    with pytest.raises(NotFound) as refused:
        await world.connect("echo").task
    assert refused.value.about is not None
    assert refused.value.about.name == NAME


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"conditions": [condition("Programmed", "Unknown", "ProgrammingInProgress", "Waiting")]},
            "is not running: ",
        ),
        (
            {
                "conditions": [
                    condition("Programmed", "Unknown", "ProgrammingInProgress", "x"),
                    condition("Ready", "Unknown", "ImageUnavailable", "The image a:1 cannot be pulled"),
                ]
            },
            "is not running: the image a:1 cannot be pulled",
        ),
        ({"conditions": [], "controller": {"observedTemplateHash": ""}}, "is not running: nothing is known about it"),
        (
            {
                "conditions": [
                    condition("Programmed", "True", "Programmed"),
                    condition("Available", "False", "Stopping", "The instance is stopping"),
                ]
            },
            "is not running: the instance is stopping",
        ),
    ],
)
async def test_an_instance_that_does_not_run_says_why(simulation: Simulation, status: Json, words: str) -> None:
    world = await started(simulation)
    await world.add(status=status)
    with pytest.raises(NotRunning, match=words):
        await world.connect("echo").task
    assert await world.events() == []


async def test_an_instance_whose_copy_belongs_to_another_project_is_not_entered(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add(labels=hub_labels("other", "default"))
    with pytest.raises(NotRunning):
        await world.connect("echo").task
    assert world.runner.places == []


async def test_a_simulated_instance_has_nothing_to_run_a_command_in(simulation: Simulation) -> None:
    world = await started(simulation, simulated=True)
    await world.add()
    with pytest.raises(Unsupported, match="runs only in simulation; there is nothing to run a command in"):
        await world.connect("echo").task
    assert await world.events() == []


async def test_a_virtual_machine_has_no_containers(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add(containers=())
    with pytest.raises(Unsupported, match="virtual machine"):
        await world.connect("echo").task


@pytest.mark.parametrize(
    ("container", "error", "words"),
    [("", BadRequest, "name one of app, proxy"), ("db", NotFound, 'no container "db"; it has app, proxy')],
)
async def test_the_container_must_be_clear(
    simulation: Simulation, container: str, error: type[ApiError], words: str
) -> None:
    world = await started(simulation)
    await world.add(containers=("app", "proxy"))
    with pytest.raises(error, match=words):
        await world.connect("echo", container=container).task


async def test_containers_are_those_that_the_hub_knows(simulation: Simulation) -> None:
    """What a project says about its instance may name a container that is the platform's."""
    world = await started(simulation)
    await world.add()
    await world.project.merge_patch(INSTANCE, NAME, "default", spec(("app", "mesh-proxy")))
    with pytest.raises(NotFound, match='no container "mesh-proxy"; it has app'):
        await world.connect("echo", container="mesh-proxy").task


async def test_a_named_container_is_entered(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add(containers=("app", "proxy"))
    await world.connect("echo", container="proxy").task
    assert world.runner.sessions[0].command.container == "proxy"


@pytest.mark.parametrize(
    ("code", "error"), [(404, NotFound), (409, NotRunning), (501, Unsupported), (503, Unavailable)]
)
async def test_a_runner_that_cannot_start_it_says_why(simulation: Simulation, code: int, error: type[ApiError]) -> None:
    world = await started(simulation)
    await world.add()
    world.runner.refusal = Unstartable("for a reason", code)
    with pytest.raises(error, match="for a reason"):
        await world.connect("echo").task


# What is not a session


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http", "query_string": b"command=echo"},
        {"type": "websocket", "query_string": b"command=echo", "subprotocols": ["v4.channel.k8s.io"]},
        {"type": "websocket", "query_string": b"", "subprotocols": [SUBPROTOCOL]},
    ],
)
async def test_a_request_that_is_no_session_is_refused(simulation: Simulation, scope: Json) -> None:
    world = await started(simulation)
    await world.add()
    peer = Peer(world.door, NAME, Command(("echo",)))
    await peer.task
    path = f"/apis/run.compute.datumapis.com/v1alpha1/namespaces/default/instances/{NAME}/exec"
    with pytest.raises(BadRequest):
        await world.door("demo", path, scope, peer._to_server.get, peer._receive)


# Limits


async def test_an_instance_has_at_most_three_sessions(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peers = [world.connect("sleep") for _ in range(3)]
    for peer in peers:
        await peer.until(b"sleeping")
    with pytest.raises(TooManyRequests, match="has 3 sessions already"):
        await world.connect("sleep").task
    peers[0].leave()
    await peers[0].task
    peers[0] = world.connect("sleep")
    await peers[0].until(b"sleeping")
    for peer in peers:
        peer.leave()
        await peer.task


async def test_a_project_has_at_most_ten_sessions(simulation: Simulation) -> None:
    world = await started(simulation)
    peers = []
    for number in range(5):
        name = f"web-default-dfw-{number}"
        await world.add(name)
        peers += [world.connect("sleep", name=name) for _ in range(2)]
    for peer in peers:
        await peer.until(b"sleeping")
    with pytest.raises(TooManyRequests, match="project demo has 10 sessions already"):
        await world.connect("sleep", name="web-default-dfw-0").task
    for peer in peers:
        peer.leave()
        await peer.task


async def test_a_refused_session_does_not_count(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    world.runner.refusal = Unstartable("not now")
    for _ in range(5):
        with pytest.raises(NotRunning):
            await world.connect("sleep").task


async def test_a_silent_session_ends_with_a_sentence(simulation: Simulation) -> None:
    world = await started(simulation, Limits(idle_seconds=900, seconds=3600))
    await world.add()
    peer = world.connect("cat", stdin=True)
    await simulation.advance(800)
    peer.type(b"x")
    await simulation.advance(800)
    assert not peer.task.done()
    await simulation.advance(101)
    assert await peer.ended() == Ended("the session ended after 15 minutes without input or output", "Timeout", 504)


async def test_a_long_session_ends_with_a_sentence(simulation: Simulation) -> None:
    world = await started(simulation, Limits(idle_seconds=900, seconds=3600))
    await world.add()
    peer = world.connect("cat", stdin=True)
    for _ in range(7):
        await simulation.advance(500)
        peer.type(b"x")
    assert not peer.task.done()
    await simulation.advance(101)
    assert await peer.ended() == Ended(
        "the session ended after 60 minutes, the longest that one may take", "Timeout", 504
    )


async def test_a_session_without_limits_may_be_silent_for_ever(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("cat", stdin=True)
    await simulation.advance(1_000_000)
    assert not peer.task.done()
    peer.end_input()
    assert await peer.ended() == Exited(0)


@pytest.mark.parametrize(("limits", "seconds"), [(Limits(idle_seconds=900), 900), (Limits(seconds=3600), 3600)])
async def test_a_session_that_took_too_long_ends_although_its_client_does_not_read(
    simulation: Simulation, limits: Limits, seconds: float
) -> None:
    world = await started(simulation, limits)
    await world.add()
    peer = world.connect("flood", "10000000")
    await peer.until(b"x")
    peer.stop_reading()
    await simulation.advance(seconds - 1)
    assert not peer.task.done()
    await simulation.advance(7)
    assert peer.task.done()


async def test_a_session_ends_with_its_instance_although_its_client_does_not_read(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("flood", "10000000")
    await peer.until(b"x")
    peer.stop_reading()
    await world.hub.delete(INSTANCE, NAME, world.namespace)
    await simulation.advance(6)
    assert peer.task.done()


@pytest.mark.parametrize(
    ("limits", "ends"), [(None, False), (Limits(idle_seconds=900), True), (Limits(seconds=900), True)]
)
async def test_the_end_of_a_command_waits_for_a_client_that_does_not_read_as_long_as_a_session_may_take(
    simulation: Simulation, limits: Limits | None, ends: bool
) -> None:
    """What the client has not read yet may be the last of the output."""
    world = await started(simulation, limits)
    await world.add()
    peer = world.connect("cat", stdin=True)
    peer.type(b"x")
    await peer.until(b"x")
    await simulation.advance(500)
    peer.stop_reading()
    peer.end_input()
    await simulation.advance(399)
    assert not peer.task.done()
    await simulation.advance(2)
    assert peer.task.done() == ends
    peer.read_on()
    assert await peer.ended() == (None if ends else Exited(0))


# How sessions end


async def test_a_command_ends_when_its_client_leaves(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("sleep")
    await peer.until(b"sleeping")
    peer.leave()
    assert await peer.ended() is None
    assert world.runner.sessions[0].closed.is_set()


async def test_a_client_that_leaves_is_noticed_although_its_input_is_not_read(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("sleep", stdin=True)
    await peer.until(b"sleeping")
    for _ in range(100):
        peer.type(b"x" * 32_000)
    peer.leave()
    await simulation.advance(10)
    assert peer.task.done()
    assert world.runner.sessions[0].closed.is_set()


async def test_a_lost_command_is_reported(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    end = await world.connect("broken").ended()
    assert isinstance(end, Ended)
    assert end.message == "the connection to the instance was lost; the command may go on"


async def test_a_deleted_instance_ends_its_sessions(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    await world.add("web-default-dfw-1", uid="another")
    peer, other = world.connect("sleep"), world.connect("sleep", name="web-default-dfw-1")
    await peer.until(b"sleeping")
    await world.hub.delete(INSTANCE, NAME, world.namespace)
    assert await peer.ended() == STOPPED
    await simulation.settle()
    assert not other.task.done()
    other.leave()
    await other.task


async def test_an_instance_that_begins_to_stop_ends_its_sessions(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("sleep")
    await peer.until(b"sleeping")
    copy = await world.hub.get(INSTANCE, NAME, world.namespace)
    stopping = {"conditions": [condition("Available", "False", "Stopping")]}
    await world.hub.replace_status(INSTANCE, copy, stopping)
    assert await peer.ended() == STOPPED


async def test_an_instance_that_is_replaced_while_the_session_starts_ends_it(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await started(simulation)
    await world.add()
    record = world.places.record

    async def replaced(*arguments: object) -> None:
        await record(*arguments)  # type: ignore[arg-type]
        await world.hub.delete(INSTANCE, NAME, world.namespace)
        await world.add_copy(uid="the next one")

    monkeypatch.setattr(world.places, "record", replaced)
    assert await world.connect("sleep").ended() == STOPPED


async def test_an_instance_that_changes_otherwise_keeps_its_sessions(simulation: Simulation) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("sleep")
    await peer.until(b"sleeping")
    copy = await world.hub.get(INSTANCE, NAME, world.namespace)
    changed = running()
    changed["conditions"][1] = condition("Available", "False", "Starting", "busy")
    await world.hub.replace_status(INSTANCE, copy, changed)
    await simulation.advance(3600)
    assert not peer.task.done()
    peer.leave()
    await peer.task


@pytest.mark.parametrize(("seconds", "end"), [(1, STOPPED), (3, Exited(137))])
async def test_a_command_that_was_killed_shortly_before_its_instance_ended_with_it(
    simulation: Simulation, seconds: float, end: Exited | Ended
) -> None:
    world = await started(simulation)
    await world.add()
    peer = world.connect("exit", "137")
    await simulation.advance(seconds)
    await world.hub.delete(INSTANCE, NAME, world.namespace)
    assert await peer.ended() == end
