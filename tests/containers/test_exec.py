"""Commands in a container of a real engine."""

import asyncio
from collections.abc import Sequence

import pytest

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.federation.sessions import Command, Session, Unstartable
from datum_compute.providers.engine.client import EngineClient
from tests.containers.test_engine import body

MEGABYTES = 10_000_000


@pytest.fixture
def place(engine: EngineClient, runner: asyncio.Runner) -> str:
    """A running container."""
    id = runner.run(engine.create("place", body("sleep")))
    runner.run(engine.start(id))
    return id


async def outcome(session: Session, stdin: bytes | None = None) -> tuple[int, dict[str, bytes]]:
    async def feed() -> None:
        if stdin is not None:
            for begin in range(0, len(stdin), 65536):
                await session.write(stdin[begin : begin + 65536])
            await session.end_input()

    output: dict[str, bytearray] = {}
    async with asyncio.timeout(60):
        feeding = asyncio.ensure_future(feed())
        async for stream, data in session.output():
            output.setdefault(stream, bytearray()).extend(data)
        await feeding
        code = await session.exit_code()
    await session.close()
    return code, {stream: bytes(data) for stream, data in output.items()}


async def run(
    engine: EngineClient, place: str, arguments: Sequence[str], stdin: bytes | None = None
) -> tuple[int, dict[str, bytes]]:
    return await outcome(await engine.exec(place, Command(arguments, stdin=stdin is not None)), stdin)


async def test_the_streams_of_a_command_are_separate(engine: EngineClient, place: str) -> None:
    code, output = await run(engine, place, ["/program", "both"])
    assert (code, output) == (0, {STDOUT: b"to stdout\n", STDERR: b"to stderr\n"})


@pytest.mark.parametrize("expected", [0, 1, 7, 130, 255])
async def test_the_exit_code_is_that_of_the_command(engine: EngineClient, place: str, expected: int) -> None:
    code, _ = await run(engine, place, ["/program", "exit", str(expected)])
    assert code == expected


async def test_a_program_that_is_missing_is_said(engine: EngineClient, place: str) -> None:
    code, output = await run(engine, place, ["/no-such-program"])
    assert code == 127
    assert b"/no-such-program" in output[STDERR]


async def test_ten_megabytes_in(engine: EngineClient, place: str) -> None:
    assert await run(engine, place, ["/program", "size"], b"x" * MEGABYTES) == (0, {STDOUT: b"10000000\n"})


async def test_ten_megabytes_out(engine: EngineClient, place: str) -> None:
    code, output = await run(engine, place, ["/program", "produce", str(MEGABYTES)])
    assert code == 0
    assert output[STDOUT] == (b"0123456789abcde\n" * (MEGABYTES // 16))


async def test_ten_megabytes_there_and_back(engine: EngineClient, place: str) -> None:
    data = bytes(range(256)) * (MEGABYTES // 256)
    code, output = await run(engine, place, ["/program", "cat"], data)
    assert code == 0
    assert output[STDOUT] == data


async def test_the_end_of_the_input_ends_the_command(engine: EngineClient, place: str) -> None:
    assert await run(engine, place, ["/program", "cat"], b"hello") == (0, {STDOUT: b"hello"})
    assert await run(engine, place, ["/program", "cat"], b"") == (0, {})


async def test_a_command_that_does_not_read_its_input_still_tells_its_exit_code(
    engine: EngineClient, place: str
) -> None:
    code, output = await run(engine, place, ["/program", "exit", "3"], b"x" * 1_000_000)
    assert code == 3
    # Podman may meet a connection that the command has closed, and says that instead of the output.
    assert output[STDERR].startswith((b"exiting with 3\n", b"Error: read unixpacket"))


async def test_a_terminal_is_resized_and_passes_every_key(engine: EngineClient, place: str) -> None:
    session = await engine.exec(place, Command(["/program", "terminal"], stdin=True, tty=True))
    output = session.output()
    seen = bytearray()

    async def until(text: bytes) -> None:
        async with asyncio.timeout(20):
            while text not in seen:
                seen.extend((await anext(output))[1])

    await until(b"\r\n")
    await session.resize(100, 40)
    await until(b"100x40\r\n")
    await session.write(b"\x10\x11 end\r")  # Ctrl-P and Ctrl-Q would detach
    await until(b"^P")
    await session.write(b"end\r")
    code, _ = await outcome(session)
    assert code == 0


async def test_a_session_can_be_closed_while_its_output_is_awaited(engine: EngineClient, place: str) -> None:
    session = await engine.exec(place, Command(["/program", "sleep"]))
    reading = asyncio.ensure_future(anext(aiter(session.output()), None))
    await asyncio.sleep(0)
    await session.close()
    assert await asyncio.wait_for(reading, 5) is None
    await session.write(b"too late")


async def test_nothing_runs_in_a_container_that_has_ended(engine: EngineClient, place: str) -> None:
    await engine.stop(place, 1)
    with pytest.raises(Unstartable) as refused:
        await engine.exec(place, Command(["/program"]))
    assert str(refused.value).startswith("The command cannot be started: ")
    with pytest.raises(Unstartable):
        await engine.exec("no-such-container", Command(["/program"]))
