"""Lines of simulated containers are a function of the window."""

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.federation.lines import STDERR
from datum_compute.telemetry.memory.simulated_lines import newest, next_time, oldest
from tests.telemetry.origins import SECOND, START, life, origin

LIFE = life(origin())
HOUR = 3600 * SECOND


def test_a_container_starts_listens_and_serves() -> None:
    lines = list(oldest(LIFE, 0, START, START + 12 * SECOND))
    assert [line.text for line in lines[:2]] == ["starting example.com/api:1", "listening on :8080"]
    assert lines[0].time == START + SECOND
    assert all(line.text.startswith("GET /") and " 200 " in line.text for line in lines[2:])
    assert len(lines) in (6, 7)  # a request every 2 s


def test_the_declared_port_is_named() -> None:
    texts = [line.text for line in oldest(life(origin(), port=9000), 0, START, START + 2 * SECOND)]
    assert "listening on :9000" in texts


def test_a_crashing_container_starts_and_panics_again_and_again() -> None:
    lines = list(oldest(life(origin(), crashes=True), 0, START, START + 21 * SECOND))
    assert [line.text for line in lines] == ["starting example.com/api:1", "panic: simulated crash"] * 2
    assert [line.stream for line in lines[1::2]] == [STDERR] * 2


def test_seeds_and_uids_give_other_lines() -> None:
    def lines(seed: int, generation: str) -> list[tuple[int, str]]:
        of = life(origin(generation=generation))
        return [(line.time, line.text) for line in oldest(of, seed, START, START + HOUR)]

    assert lines(1, "a") == lines(1, "a")
    assert lines(1, "a") != lines(2, "a")
    assert lines(1, "a") != lines(1, "b")


WINDOWS = st.tuples(st.integers(-5 * SECOND, 400 * SECOND), st.integers(0, 120 * SECOND))


@given(WINDOWS, st.booleans())
def test_any_window_is_a_part_of_the_whole_in_both_directions(window: tuple[int, int], crashes: bool) -> None:
    of = life(origin(), crashes=crashes)
    start, end = START + window[0], START + window[0] + window[1]
    whole = list(oldest(of, 7, START, START + 600 * SECOND))
    expected = [line for line in whole if start <= line.time < end]
    assert list(oldest(of, 7, start, end)) == expected
    assert list(newest(of, 7, start, end)) == expected[::-1]
    assert next_time(of, 7, start) == next(line.time for line in whole if line.time >= start)


def test_times_never_go_back_or_repeat() -> None:
    times = [line.time for line in oldest(LIFE, 0, START, START + 2 * HOUR)]
    assert times == sorted(set(times))


def test_the_end_of_a_long_life_is_found_at_once() -> None:
    week = START + 7 * 24 * HOUR
    line = next(newest(LIFE, 0, START, week))
    assert week - 4 * SECOND < line.time < week
