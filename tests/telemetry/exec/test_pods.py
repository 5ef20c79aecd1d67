"""Commands in Pods: what users and operators learn when a site cannot run one."""

import pytest
import structlog

from datum_compute.federation.sessions import Command, Unstartable
from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import Ended
from datum_compute.telemetry.exec.pods import PodSession


class Failing:
    """A `Link` to a site that only says why it could not run a command."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def send(self, data: bytes) -> None:
        raise AssertionError("nothing is sent")

    async def receive(self) -> bytes | None:
        return channels.closing(Ended(self._text))

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("executable file not found in $PATH", 'the program "sh" is not in the container'),
        ("permission denied", 'the program "sh" may not be executed in the container'),
        ("connection refused by 10.0.0.1", "the site could not run the command, or lost it"),
    ],
)
async def test_a_sites_words_which_quote_the_command_are_neither_told_nor_logged(words: str, sentence: str) -> None:
    command = Command(("sh -c 'login hunter2'",))
    session = PodSession(Failing(f'exec: "{command.arguments[0]}": {words}'), command)
    assert [piece async for piece in session.output()] == []
    with structlog.testing.capture_logs() as logs, pytest.raises(Unstartable) as failed:
        await session.exit_code()
    assert str(failed.value) == sentence
    assert [(entry["event"], entry["error"]) for entry in logs] == [("command failed", sentence)]
