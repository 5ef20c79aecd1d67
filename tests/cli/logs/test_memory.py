"""Lines that come again are recognized, and none that is new is taken for an old one."""

from hypothesis import given
from hypothesis import strategies as st

from datum_compute.cli.logs.entries import Entry, Labels
from datum_compute.cli.logs.memory import Memory

A, B = Labels.of({"datum_instance_name": "a"}), Labels.of({"datum_instance_name": "b"})


def test_time_labels_and_text_together_identify_a_line() -> None:
    memory = Memory()
    first = Entry(1, A, "x")
    assert memory.fresh([first]) == [first]
    memory.begin()
    others = [Entry(2, A, "x"), Entry(1, B, "x"), Entry(1, A, "y")]
    assert memory.fresh([first, *others]) == others
    assert memory.latest == 2


def test_equal_lines_are_counted() -> None:
    memory, tick = Memory(), Entry(1, A, "tick")
    assert memory.fresh([tick, tick]) == [tick, tick]
    memory.begin()
    assert memory.fresh([tick, tick, tick]) == [tick]
    memory.begin()
    assert memory.fresh([tick, tick, tick]) == []


def test_a_line_that_comes_again_with_its_time_cut_down_to_the_second_is_recognized() -> None:
    memory, second = Memory(rounds=True), 1_000_000_000
    ticks = [
        Entry(37 * second + 417, A, "tick"),
        Entry(37 * second + 900, A, "tick"),
        Entry(39 * second + 1, A, "tick"),
    ]
    assert memory.fresh(ticks) == ticks
    again = [Entry(time * second, A, "tick") for time in (37, 37, 38)]
    others = [
        Entry(37 * second, A, "tick"),  # a third one
        Entry(39 * second, A, "tick"),
        Entry(37 * second, B, "tick"),
        Entry(37 * second, A, "tock"),
        Entry(36 * second + 1, A, "tick"),  # not a whole second
    ]
    memory.begin()
    assert memory.fresh([*again, *others]) == others
    memory.begin()
    assert memory.fresh([*again, *others]) == []


def test_times_are_exact_unless_rounding_is_expected() -> None:
    memory, cut = Memory(), Entry(0, A, "x")
    memory.fresh([Entry(417, A, "x")])
    memory.begin()
    assert memory.fresh([cut]) == [cut]


entries = st.builds(Entry, st.integers(0, 5), st.sampled_from([A, B]), st.sampled_from(["x", "y"]))


@given(st.lists(entries, max_size=30).map(lambda found: sorted(found, key=lambda entry: entry.time)), st.data())
def test_readings_that_overlap_add_up_to_everything_once(log: list[Entry], data: st.DataObject) -> None:
    memory, read = Memory(rounds=True), []
    end = 0
    while end < len(log):
        begin = data.draw(st.integers(0, end))
        while begin and log[begin - 1].time == log[begin].time:  # a server sends all lines of a moment
            begin -= 1
        end = data.draw(st.integers(end + 1, len(log)))
        memory.begin()
        read += memory.fresh(log[begin:end])
    assert read == log


def test_what_is_not_read_again_is_forgotten() -> None:
    memory = Memory()
    log = [Entry(time, A, "x") for time in range(30_000)]
    memory.fresh(log)
    memory.forget_before(29_990)
    memory.begin()
    assert memory.fresh(log[29_990:]) == []
    assert memory.fresh(log[:1]) == log[:1]
