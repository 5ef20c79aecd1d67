"""The output of `logs`: lines on stdout, and what happens meanwhile on stderr. Entry point: `LogScreen`."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime

from datum_compute.cli.logs.entries import INSTANCE_LABEL, Dropped, Entry, Notice
from datum_compute.cli.show.documents import json_text
from datum_compute.cli.show.log_entries import Appearance, EntryLines, clock_time, record, short_name
from datum_compute.cli.show.terminal import Terminal

_GENERATION = re.compile(r"generation (\S+)")
_SHORT_ID = 8
_SECOND = 1_000_000_000


class LogScreen:
    """`is_gone` tells whether the workload was deleted."""

    def __init__(
        self,
        terminal: Terminal,
        workload: str,
        appearance: Appearance,
        *,
        cities: Sequence[str],
        containers: Sequence[str],
        is_gone: Callable[[], bool],
    ) -> None:
        self._terminal = terminal
        self._workload = workload
        self._zone = appearance.zone
        self._lines = EntryLines(workload, appearance, cities=cities, containers=containers)
        self._cities = set(cities)
        self._is_gone = is_gone
        self._deleted = False
        self._generations: dict[str, set[str]] = {}
        self._silent: dict[str, int] = {}
        self.count = 0

    def begin(self) -> None:
        self._terminal.aside(f'Following "{self._workload}"; Ctrl-C ends it.')

    def show(self, entries: Sequence[Entry]) -> None:
        """Writes lines together, which is faster, except where a new generation begins between them."""
        if not entries:
            self._terminal.check_reader()
        self.count += len(entries)
        if self._terminal.structured:
            self._terminal.lines("".join(json_text(record(entry), indent=0) for entry in entries))
            return
        texts: list[str] = []
        for entry in entries:
            instance, generation = entry.labels.value(INSTANCE_LABEL), entry.labels.generation[1]
            self._cities.add(entry.labels.place)
            if self._begins(instance, generation):
                self._terminal.lines("".join(texts))
                texts = []
                self._report_generation(instance, generation)
            texts.append(f"{self._lines.text(entry)}\n")
        self._terminal.lines("".join(texts))

    def notice(self, notice: Notice) -> None:
        name = short_name(self._workload, notice.instance)
        match notice.kind:
            case "silent":
                self._silent[notice.city] = notice.time
                others = "; the others go on" if self._cities - {notice.city} else ""
                self._terminal.warn(
                    f"{notice.city} does not answer since {clock_time(notice.time, self._zone)}{others}"
                )
            case "back":
                seconds = (notice.time - self._silent.pop(notice.city, notice.time)) / _SECOND
                self._terminal.warn(f"{notice.city} answers again after {seconds:.0f} s")
            case "generation":
                named = _GENERATION.search(notice.message)
                if named is not None and not self._knows(notice.instance, named[1]):
                    self._report_generation(notice.instance, named[1])
            case "joined":
                self._terminal.aside(f"[{name}] joined")
            case "left":
                self._leave(name)

    def _leave(self, name: str) -> None:
        """All instances of a deleted workload leave; one line is enough for them."""
        if self._deleted:
            return
        self._deleted = self._is_gone()
        if self._deleted:
            self._terminal.warn(f'workload "{self._workload}" was deleted; its instances are leaving')
        else:
            self._terminal.aside(f"[{name}] left")

    def dropped(self, dropped: Sequence[Dropped]) -> None:
        counts: dict[str, int] = {}
        for entry in dropped:
            instance = entry.labels.get(INSTANCE_LABEL, "")
            counts[instance] = counts.get(instance, 0) + entry.count
        for instance, count in sorted(counts.items()):
            of = f" of {short_name(self._workload, instance)}" if instance else ""
            lines = "1 line" if count == 1 else f"{count} lines"
            were = "was" if count == 1 else "were"
            self._terminal.warn(f"{lines}{of} {were} left out: too much came at once")

    def lost(self, since: datetime, reason: str) -> None:
        at = clock_time(int(since.timestamp()) * _SECOND, self._zone)
        self._terminal.warn(f"The server has not answered since {at}: {reason}; still trying")

    def back(self, seconds: float) -> None:
        self._terminal.warn(f"The server answers again after {seconds:.0f} s")

    def _begins(self, instance: str, generation: str) -> bool:
        """Whether this is the first line of a generation, and not of the instance."""
        is_first = not self._generations.get(instance)
        return not self._knows(instance, generation) and not is_first

    def _knows(self, instance: str, generation: str) -> bool:
        """Whether a generation was seen before; it is from now on."""
        generations = self._generations.setdefault(instance, set())
        is_known = not generation or generation in generations
        generations.add(generation)
        return is_known

    def _report_generation(self, instance: str, generation: str) -> None:
        name = short_name(self._workload, instance)
        self._terminal.aside(f"[{name}] replaced: generation {generation[:_SHORT_ID]} begins")
