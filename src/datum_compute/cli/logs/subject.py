"""Whose lines to read: a workload, or what is left of one, and which of its cities, instances and containers. Entry
point: `Subject`."""

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from msgspec import Struct

from datum_compute.answers.owners import Owners
from datum_compute.api.instance import INSTANCE, Instance
from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.logs.entries import CITY_LABEL, CONTAINER_LABEL, INSTANCE_LABEL, WORKLOAD_LABEL
from datum_compute.cli.logs.selection import Selection
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.show.log_entries import short_name
from datum_compute.cli.show.specs import container_names
from datum_compute.cli.talk.log_api import LogApi
from datum_compute.cli.talk.project import Project, of_workload

_NAMES = 20  # to list at most


class Choice(Struct, frozen=True):
    """What the flags name; everything where they name nothing."""

    cities: Sequence[str] = ()
    instances: Sequence[str] = ()
    container: str = ""


class Subject:
    """`oldest` is the time from which on names are looked for in the logs."""

    def __init__(self, project: Project, logs: LogApi, name: str, oldest: int) -> None:
        self.name = name
        self._project = project
        self._logs = logs
        self._oldest = oldest
        found = project.find(WORKLOAD, name)
        self.workload: Workload | None = found.object if found is not None else None
        if self.workload is None and not self._is_remembered():
            self._raise_not_found()

    def instances(self) -> list[Instance]:
        return self._project.list(INSTANCE, of_workload(self.workload)).items if self.workload is not None else []

    def is_gone(self) -> bool:
        """Whether it is deleted by now; unknown counts as no."""
        try:
            found = self._project.find(WORKLOAD, self.name)
        except Failure:
            return False
        return found is None or found.object.metadata.deleting

    @property
    def cities(self) -> list[str]:
        """The cities of the spec."""
        placements = self.workload.spec.placements if self.workload is not None else ()
        return sorted({city for placement in placements for city in placement.city_codes})

    @property
    def containers(self) -> list[str]:
        return container_names(self.workload.spec.template.spec) if self.workload is not None else []

    def selection(self, choice: Choice) -> Selection:
        """Raises a `Failure` for names that neither the project nor the logs know."""
        everything = Selection().with_label(WORKLOAD_LABEL, [self.name])
        return self._in_cities(self._of(everything, choice), choice.cities)

    def _of(self, selection: Selection, choice: Choice) -> Selection:
        if choice.instances:
            names = _Names([instance.name for instance in self.instances()], lambda: self._logged(INSTANCE_LABEL))
            found = {typed: names.find(typed, f"{self.name}-{typed}") for typed in choice.instances}
            for typed, name in found.items():
                if not name:
                    there = [short_name(self.name, name) for name in names.all]
                    self._raise_unknown(f'has no instance "{typed}"', there)
            selection = selection.with_label(INSTANCE_LABEL, list(dict.fromkeys(found.values())))
        if choice.container:
            names = _Names(self.containers, lambda: self._logged(CONTAINER_LABEL))
            if not names.find(choice.container):
                self._raise_unknown(f'has no container "{choice.container}"', names.all)
            selection = selection.with_label(CONTAINER_LABEL, [choice.container])
        return selection

    def _in_cities(self, selection: Selection, cities: Sequence[str]) -> Selection:
        if not cities:
            return selection
        running = [Owners().of(instance).city for instance in self.instances()]
        names = _Names([*self.cities, *running], lambda: self._logged(CITY_LABEL))
        codes = []
        for typed in dict.fromkeys(cities):
            same = [code for code in names.all if code.lower() == typed.lower()]
            if not same:
                self._raise_unknown(f"has no instances in {typed}", names.all)
            codes += same
        if CITY_LABEL in self._logs.labels(self._oldest):
            return selection.with_label(CITY_LABEL, codes)
        return selection.in_places(self.name, codes)

    def _logged(self, label: str) -> Sequence[str]:
        """Also names of what exists no more."""
        return self._logs.values(label, self._oldest, Selection().with_label(WORKLOAD_LABEL, [self.name]).query)

    def _is_remembered(self) -> bool:
        try:
            return self.name in self._logs.values(WORKLOAD_LABEL, self._oldest)
        except Failure as failure:
            if failure.code is Exit.UNAVAILABLE:
                return False
            raise

    def _raise_not_found(self) -> NoReturn:
        """People also name an instance, as they do elsewhere."""
        instance = self._project.find(INSTANCE, self.name)
        text = f'workload "{self.name}" not found in project {self._project.name}'
        if instance is None:
            raise Failure(text, Exit.NOT_FOUND, next_command="workloads")
        workload = Owners().of(instance.object).workload
        raise Failure(
            text,
            Exit.NOT_FOUND,
            details=[f"it is an instance of workload {workload}"],
            next_command=f"logs {workload} --instance={short_name(workload, self.name)}",
        )

    def _raise_unknown(self, what: str, names: Sequence[str]) -> NoReturn:
        raise Failure(f'workload "{self.name}" {what}{_list(names)}', Exit.NOT_FOUND)


class _Names:
    """Names of the project, and those that the logs remember, which are looked up only if need be."""

    def __init__(self, current: Iterable[str], logged: Callable[[], Sequence[str]]) -> None:
        self._current = list(current)
        self._look_up = logged
        self._logged: Sequence[str] | None = None

    @property
    def all(self) -> list[str]:
        if self._logged is None:
            self._logged = self._look_up()
        return sorted({*self._current, *self._logged})

    def find(self, *spellings: str) -> str:
        """The first spelling that is a name; empty if none is."""
        current = next((text for text in spellings if text in self._current), "")
        return current or next((text for text in spellings if text in self.all), "")


def _list(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names[:_NAMES])}{more}"
