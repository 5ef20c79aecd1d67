"""Four instances in two cities are followed over the real server: whatever happens, each line arrives exactly once."""

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cli.log_federation import LogFederation, Reading, origin, per_instance, until

INSTANCES = ("api-default-ams-0", "api-default-ams-1", "api-default-dfw-0", "api-default-dfw-1")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LogFederation]:
    federation = LogFederation(tmp_path)
    for name in INSTANCES:
        federation.start(origin(name))
    yield federation
    federation.close()


class Writers:
    """Each instance writes its numbers, from 0 on, one line every few milliseconds, until it is stopped."""

    def __init__(self, federation: LogFederation) -> None:
        self._federation = federation
        self._stopping = threading.Event()
        self._generations = dict.fromkeys(INSTANCES, "g1")
        self.written = dict.fromkeys(INSTANCES, 0)
        self._numbers = {name: count() for name in INSTANCES}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stopping.wait(0.004):
            with self._lock:
                for name, generation in self._generations.items():
                    if generation:
                        self._federation.write(origin(name, generation), str(next(self._numbers[name])))
                        self.written[name] += 1

    def until_more(self, number: int) -> None:
        goal = min(self.written.values()) + number
        until(lambda: min(value for name, value in self.written.items() if self._generations[name]) >= goal)

    def replace(self, name: str, generation: str) -> None:
        with self._lock:
            self._federation.end(origin(name, self._generations[name]))
            self._federation.start(origin(name, generation))
            self._generations[name] = generation

    def delete(self, name: str) -> None:
        with self._lock:
            self._federation.end(origin(name, self._generations[name]))
            self._generations[name] = ""

    def stop(self) -> dict[str, list[str]]:
        """Returns everything that was written."""
        self._stopping.set()
        self._thread.join()
        return {name: [str(number) for number in range(total)] for name, total in self.written.items()}


def test_lines_arrive_once_over_breaks_a_roll_and_a_deletion(federation: LogFederation, tmp_path: Path) -> None:
    reading = Reading(federation, tmp_path, "-f", "-o", "json")
    reading.until_note("Following")
    writers = Writers(federation)
    try:
        writers.until_more(10)
        for name in INSTANCES:
            writers.replace(name, "g2")
            writers.until_more(5)
        for _ in range(3):
            reading.until_lines(len(reading.records) + 20)
            federation.wire.cut()
            writers.until_more(20)
        writers.delete(INSTANCES[3])
        writers.until_more(20)
    finally:
        written = writers.stop()
    reading.until_lines(sum(map(len, written.values())))
    assert reading.interrupt() == 0
    assert per_instance(reading.records) == written
    assert {record["generation"] for record in reading.records} == {"g1", "g2"}


def test_lines_of_two_cities_are_in_the_order_of_time(federation: LogFederation, tmp_path: Path) -> None:
    reading = Reading(federation, tmp_path, "-f", "-o", "json")
    reading.until_note("Following")
    writers = Writers(federation)
    writers.until_more(50)
    written = writers.stop()
    reading.until_lines(sum(map(len, written.values())))
    reading.interrupt()
    times = [record["timestamp"] for record in reading.records]
    assert times == sorted(times)


def test_an_outage_of_the_server_is_told_twice_and_costs_no_line(federation: LogFederation, tmp_path: Path) -> None:
    first, *_ = INSTANCES
    federation.write(origin(first), "before")
    reading = Reading(federation, tmp_path, "-f", "-o", "json")
    reading.until_lines(1)
    federation.wire.stop()
    reading.until_note("still trying")
    federation.write(origin(first), "meanwhile")
    federation.wire.restart()
    reading.until_note("answers again")
    federation.write(origin(first), "after")
    reading.until_lines(3)
    assert reading.interrupt() == 0
    assert reading.texts == ["before", "meanwhile", "after"]
    assert len(reading.notes) == 3


def test_what_happens_to_instances_is_one_line_each(federation: LogFederation, tmp_path: Path) -> None:
    reading = Reading(federation, tmp_path, "-f", "--utc")
    reading.until_note("Following")
    federation.start(origin("api-default-dfw-2"))
    reading.until_note("joined")
    federation.end(origin("api-default-dfw-2"))
    federation.start(origin("api-default-dfw-2", "4f1c2a9e-77aa-4c1f-9d6e-0123456789ab"))
    reading.until_note("replaced")
    federation.silence("AMS", "the site cannot tell")
    reading.until_note("does not answer")
    federation.silence("AMS", "")
    reading.until_note("answers again")
    federation.delete_workload()
    for name in INSTANCES:
        federation.end(origin(name))
    reading.until_note("deleted")
    assert reading.interrupt() == 0
    following, joined, replaced, silent, back, deleted = reading.notes
    assert following == 'Following "api"; Ctrl-C ends it.'
    assert joined == "[default-dfw-2] joined"
    assert replaced == "[default-dfw-2] replaced: generation 4f1c2a9e begins"
    assert silent.startswith("AMS does not answer since ")
    assert silent.endswith("; the others go on")
    assert back == "AMS answers again after 0 s"
    assert deleted == 'workload "api" was deleted; its instances are leaving'
