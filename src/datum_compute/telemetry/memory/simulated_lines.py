"""Lines of simulated containers, as a function of the container and the window asked for. Entry points: `newest`,
`oldest`, `next_time`.

Nothing is stored and nothing runs while nobody reads. A container has numbered lines; the time and text of each follow
from a seed, its uid and its number.
"""

import zlib
from collections.abc import Iterator

from datum_compute.federation.lines import STDERR, STDOUT, Line
from datum_compute.federation.lives import Life

SECOND = 1_000_000_000

# Conditions have whole seconds, so a container may have begun up to a second after its start; no line may come
# before, because it would be in the past for those who follow.
_FIRST = SECOND
_LISTENING = SECOND // 5  # after the first line
_PERIOD = 2 * SECOND  # of requests
_JITTER = SECOND  # how much later a request may come
_CRASH_PERIOD = 10 * SECOND
_CRASH = SECOND  # after the first line
_DEFAULT_PORT = 8080

_PATHS = ("/", "/", "/", "/health", "/index.html", "/api/items", "/favicon.ico")


def newest(life: Life, seed: int, start: int, end: int) -> Iterator[Line]:
    """The lines from `start`, inclusive, to `end`, exclusive, newest first."""
    number = _at_or_after(life, seed, end) - 1
    while number >= 0 and (time := _time(life, seed, number)) >= start:
        yield _line(life, seed, number, time)
        number -= 1


def oldest(life: Life, seed: int, start: int, end: int) -> Iterator[Line]:
    """The same, oldest first."""
    number = _at_or_after(life, seed, start)
    while (time := _time(life, seed, number)) < end:
        yield _line(life, seed, number, time)
        number += 1


def next_time(life: Life, seed: int, moment: int) -> int:
    """The time of the first line at or after a moment."""
    return _time(life, seed, _at_or_after(life, seed, moment))


def _at_or_after(life: Life, seed: int, moment: int) -> int:
    """The number of the first line that is not before a moment. Times grow with the numbers."""
    period, lines = (_CRASH_PERIOD, 2) if life.crashes else (_PERIOD, 1)
    number = max((moment - life.start - _FIRST) // period * lines - 2, 0)
    while _time(life, seed, number) < moment:
        number += 1
    return number


def _time(life: Life, seed: int, number: int) -> int:
    begin = life.start + _FIRST
    if life.crashes:
        run, last = divmod(number, 2)
        return begin + run * _CRASH_PERIOD + last * _CRASH
    if number < 2:
        return begin + number * _LISTENING
    return begin + (number - 1) * _PERIOD + _draw(life, seed, number) * _JITTER // 2**32


def _line(life: Life, seed: int, number: int, time: int) -> Line:
    if life.crashes and number % 2:
        return Line(time, STDERR, "panic: simulated crash")
    if life.crashes or number == 0:
        return Line(time, STDOUT, f"starting {life.image}")
    if number == 1:
        return Line(time, STDOUT, f"listening on :{life.port or _DEFAULT_PORT}")
    drawn = _draw(life, seed, -number)
    return Line(time, STDOUT, f"GET {_PATHS[drawn % len(_PATHS)]} 200 {1 + (drawn >> 8) % 40}ms")


def _draw(life: Life, seed: int, number: int) -> int:
    """A number from 0 to 2**32 - 1 that follows from the container and the number of the line."""
    return zlib.crc32(f"{number}/{life.origin.container}/{life.origin.generation}/{seed}".encode())
