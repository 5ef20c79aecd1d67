"""Messages between a command and its user: what they mean, and that nothing can break their reader."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.telemetry.exec import channels
from datum_compute.telemetry.exec.channels import (
    Ended,
    EndOfInput,
    Exited,
    Input,
    Output,
    Resize,
    from_client,
    from_server,
)


@pytest.mark.parametrize(
    ("data", "meaning"),
    [
        (b"", None),
        (b"\0", Input(b"")),
        (b"\0abc", Input(b"abc")),
        (b"\1abc", None),
        (b"\3{}", None),
        (b'\4{"Width":80,"Height":24}', Resize(80, 24)),
        (b'\4{"Width":0,"Height":24}', None),
        (b'\4{"Width":80}', None),
        (b'\4{"Width":70000,"Height":24}', None),
        (b'\4{"Width":"80","Height":24}', None),
        (b"\4\xff", None),
        (b"\xff\0", EndOfInput()),
        (b"\xff\1", None),
        (b"\xff", None),
        (b"\5", None),
    ],
)
def test_messages_of_a_client(data: bytes, meaning: object) -> None:
    assert from_client(data) == meaning


@pytest.mark.parametrize(
    ("data", "meaning"),
    [(b"", None), (b"\0x", None), (b"\1out", Output(1, b"out")), (b"\2err", Output(2, b"err")), (b"\xff\1", None)],
)
def test_messages_of_a_server(data: bytes, meaning: object) -> None:
    assert from_server(data) == meaning


@pytest.mark.parametrize("end", [Exited(0), Exited(1), Exited(130), Exited(255), Ended("the instance was stopped")])
def test_the_last_message_says_how_the_command_ended(end: Exited | Ended) -> None:
    assert from_server(channels.closing(end)) == end


@pytest.mark.parametrize(
    ("status", "end"),
    [
        (
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code",
                "details": {"causes": [{"reason": "ExitCode", "message": "126"}]},
            },
            Exited(126),
        ),
        ({"status": "Failure", "reason": "NonZeroExitCode", "message": "odd"}, Ended("odd", "NonZeroExitCode")),
        (
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": "odd",
                "details": {"causes": [{"reason": "ExitCode", "message": "99999999999999999999"}]},
            },
            Ended("odd", "NonZeroExitCode"),
        ),
        ({"status": "Failure", "reason": "InternalError", "message": "no", "code": 500}, Ended("no", "InternalError")),
        ({"status": "Failure"}, Ended("the server did not say why the command failed", "")),
    ],
)
def test_a_status_of_kubernetes_is_understood(status: object, end: object) -> None:
    assert channels.outcome(msgspec.json.encode(status)) == end


@given(st.binary())
def test_no_message_breaks_its_reader(data: bytes) -> None:
    from_client(data)
    from_server(data)
    from_client(b"\4" + data)
    from_server(b"\3" + data)


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_a_size_arrives(width: int, height: int) -> None:
    assert from_client(channels.resize(width, height)) == Resize(width, height)
