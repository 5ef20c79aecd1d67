"""Streams of an engine are taken apart the same way, wherever their chunks end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.kube.meta import encode
from datum_compute.providers.engine.interface import EngineAway
from datum_compute.providers.engine.streams import Documents, Frames, nanoseconds, split_time
from tests.providers.engine_boxes import framed

FRAMES = st.lists(
    st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=60) | st.binary(min_size=5000, max_size=9000)),
    max_size=8,
)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(bounds)]


@given(FRAMES, st.lists(st.integers(0, 20_000), max_size=12))
def test_frames_survive_any_cut(frames: list[tuple[str, bytes]], cuts: list[int]) -> None:
    reader = Frames()
    found: list[tuple[str, bytes]] = []
    for chunk in chunks(b"".join(framed(*frame) for frame in frames), cuts):
        for stream, piece, begins in reader.feed(chunk):
            if begins:
                found.append((stream, piece))
            else:
                found[-1] = (stream, found[-1][1] + piece)
    assert found == frames


@given(FRAMES, st.lists(st.integers(0, 20_000), max_size=12), st.integers(0, 12))
def test_reading_goes_on_in_step_after_a_part_was_passed_over(
    frames: list[tuple[str, bytes]], cuts: list[int], passed: int
) -> None:
    reader = Frames()
    parts = chunks(b"".join(framed(*frame) for frame in frames), cuts)
    lines = sum(reader.skip(chunk)[0] for chunk in parts[:passed])
    rest = [piece for chunk in parts[passed:] for piece in reader.feed(chunk)]
    begun = [(stream, piece) for stream, piece, begins in rest if begins]
    assert len(begun) <= len(frames)
    for (stream, piece), frame in zip(reversed(begun), reversed(frames), strict=False):
        assert stream == frame[0]
        assert frame[1].startswith(piece)
    if passed >= len(parts):
        assert lines == sum(data.endswith(b"\n") for _, data in frames)


@pytest.mark.parametrize(
    ("data", "lines", "torn"),
    [
        (framed(STDOUT, b"a\n") + framed(STDERR, b"b\n"), 2, []),
        (framed(STDOUT, b"a\n") + framed(STDERR, b"b"), 1, [STDERR]),
        (framed(STDOUT, b"a") + framed(STDOUT, b"b\n"), 1, []),
        (framed(STDOUT, b"a\n") + framed(STDOUT, b"bcd\n")[:-2], 1, [STDOUT]),
        (framed(STDOUT, b"a\n") + framed(STDOUT, b"b\n")[:5], 1, []),
    ],
)
def test_lines_that_are_passed_over_are_counted(data: bytes, lines: int, torn: list[str]) -> None:
    assert Frames().skip(data) == (lines, frozenset(torn))


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 200 OK", b"\x01\x00\x01\x00\x00\x00\x00\x01x", b"plain text of a terminal"]
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineAway):
        list(Frames().feed(data))
    with pytest.raises(EngineAway):
        Frames().skip(data)


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)), st.data())
def test_documents_survive_any_cut(documents: list[dict[str, object]], data: st.DataObject) -> None:
    text = b"\r\n".join(map(encode, documents))
    reader = Documents()
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    found = [entry for chunk in chunks(text, cuts) for entry in reader.feed(chunk)]
    assert [*found, *reader.finish()] == documents


@pytest.mark.parametrize("data", [b"{broken\n", b"[1]\n", b"\xff\n"])
def test_what_is_no_document_is_an_error(data: bytes) -> None:
    with pytest.raises(EngineAway):
        Documents().feed(data)


def test_a_document_without_end_is_an_error() -> None:
    reader = Documents()
    with pytest.raises(EngineAway):
        for _ in range(100):
            reader.feed(b"x" * 100_000)


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b"2026-06-01T12:00:00.000000001Z text", (1780315200_000000001, b"text")),
        (b"2026-06-01T12:00:00.5Z a b", (1780315200_500000000, b"a b")),
        (b"2026-06-01T14:00:00+02:00 text", (1780315200_000000000, b"text")),
        (b"2026-06-01T12:00:00Z \n", (1780315200_000000000, b"\n")),
        (b"2026-06-01T12:00:00Z", (0, b"2026-06-01T12:00:00Z")),
        (b"a line without any time before it", (0, b"a line without any time before it")),
        (b"2026-13-41T12:00:00Z text", (0, b"2026-13-41T12:00:00Z text")),
        (b"2026-06-01T12:00:00.x1Z text", (0, b"2026-06-01T12:00:00.x1Z text")),
        (b"", (0, b"")),
    ],
)
def test_the_time_before_a_line(frame: bytes, expected: tuple[int, bytes]) -> None:
    assert split_time(frame) == expected


@given(st.binary(max_size=60))
def test_no_line_is_lost_for_its_time(frame: bytes) -> None:
    time, rest = split_time(frame)
    assert frame.endswith(rest)
    assert time or rest == frame


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0001-01-01T00:00:00Z", 0),
        ("", 0),
        ("yesterday", 0),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("2026-11-18T13:22:20.212131772Z", 1795008140_212131772),
        ("2026-11-18T14:22:20.21+01:00", 1795008140_210000000),
    ],
)
def test_the_times_of_a_container(text: str, expected: int) -> None:
    assert nanoseconds(text) == expected
