"""Byte streams of a container engine, taken apart. Entry points: `Frames`, `Documents`, `split_time`.

Output of containers comes in frames with a head of eight bytes: the stream, three zeros, and the length. Events and the
progress of pulls come as JSON, a document per line.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache

import msgspec

from datum_compute.federation.lines import STDERR, STDOUT
from datum_compute.kube.meta import Json, decode
from datum_compute.providers.engine.interface import EngineAway

HEAD = 8
_WHOLE = 4096  # a shorter frame is passed on only when it is complete
_LONGEST_DOCUMENT = 1 << 20
_NAMES = {0: STDOUT, 1: STDOUT, 2: STDERR, 3: STDERR}  # 0 is the input, echoed; 3 are the engine's own complaints
_UNREADABLE = "the container engine sent something that cannot be read"


class Frames:
    """Takes frames from chunks that may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0  # bytes that are missing of the current frame
        self._stream = STDOUT

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes, bool]]:
        """Pieces of frames: the stream, the bytes, and whether the frame begins with them. To be read to the end.

        A frame is one piece unless it is long, so that the time before a line is never torn.
        """
        data = self._rest + chunk if self._rest else chunk
        at, end = 0, len(data)
        if self._left:
            piece = data[: self._left]
            at = len(piece)
            self._left -= at
            if piece:
                yield self._stream, piece, False
        while end - at >= HEAD:
            stream, length = _head(data, at)
            there = end - at - HEAD
            if there < length and there < _WHOLE:
                break
            piece = data[at + HEAD : at + HEAD + length]
            at += HEAD + len(piece)
            self._left, self._stream = length - len(piece), stream
            yield stream, piece, True
        self._rest = data[at:]

    def skip(self, chunk: bytes) -> tuple[int, frozenset[str]]:
        """Passes over a chunk, at a fraction of the cost. Returns how many lines ended in it, and the streams on which
        a line has begun and not ended."""
        data = self._rest + chunk if self._rest else chunk
        end, lines, torn = len(data), 0, {STDOUT: False, STDERR: False}
        at = self._left
        if at and at <= end:
            lines += not (unfinished := data[at - 1] != 10)
            torn[self._stream] = unfinished
        while end - at >= HEAD:
            self._stream, length = _head(data, at)
            at += HEAD + length
            if length and at <= end:
                lines += not (unfinished := data[at - 1] != 10)
                torn[self._stream] = unfinished
        self._left = max(at - end, 0)
        self._rest = data[at:]
        if self._left:
            torn[self._stream] = True
        return lines, frozenset(stream for stream, unfinished in torn.items() if unfinished)


def _head(data: bytes, at: int) -> tuple[str, int]:
    stream = _NAMES.get(data[at])
    if stream is None or data[at + 1 : at + 4] != b"\0\0\0":
        raise EngineAway(_UNREADABLE)
    return stream, int.from_bytes(data[at + 4 : at + HEAD], "big")


class Documents:
    """Takes JSON documents from chunks that may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Json]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _LONGEST_DOCUMENT:
            raise EngineAway(_UNREADABLE)
        return [document(line) for line in lines if line.strip()]

    def finish(self) -> list[Json]:
        """The last document, if no newline came after it."""
        return [document(self._rest)] if self._rest.strip() else []


def document(data: bytes) -> Json:
    try:
        return decode(data, dict)
    except msgspec.MsgspecError:
        raise EngineAway(_UNREADABLE) from None


def split_time(frame: bytes) -> tuple[int, bytes]:
    """The time before a line of a log, in nanoseconds, and the rest; 0 if there is none."""
    end = frame.find(b" ", 0, 40)
    if end < 20:
        return 0, frame
    try:
        return _nanoseconds(frame[:end]), frame[end + 1 :]
    except ValueError:
        return 0, frame


def nanoseconds(text: str) -> int:
    """A time as engines write it; 0 for none, which some write as the year 1."""
    try:
        return max(_nanoseconds(text.encode()), 0)
    except ValueError:
        return 0


def _nanoseconds(text: bytes) -> int:
    seconds, zone = text[:19], len(text) - 1
    if not text.endswith(b"Z"):
        zone = len(text) - 6
    fraction = text[19:zone]
    if fraction and (fraction[:1] != b"." or not fraction[1:].isdigit() or len(fraction) > 10):
        raise ValueError("not a time")
    return _whole_seconds(seconds, text[zone:]) * 1_000_000_000 + int(fraction[1:].ljust(9, b"0") or b"0")


@lru_cache(maxsize=256)  # thousands of lines share a second
def _whole_seconds(seconds: bytes, zone: bytes) -> int:
    text = (seconds + (b"+00:00" if zone == b"Z" else zone)).decode("ascii")
    return round((datetime.fromisoformat(text) - _EPOCH).total_seconds())


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
