"""City codes as the platform spells them. Entry points: `offered`, `spelled`, `not_offered_hints`."""

from collections.abc import Iterable, Sequence

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.cli.shell.failures import usage
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.lines import Line, hints
from datum_compute.cli.talk.project import Project


def offered(project: Project) -> list[str]:
    """The cities that the project may use, sorted; empty if the platform does not say."""
    listing = project.list_served(LOCATION_BINDING)
    codes = {binding.spec.topology.get(TOPOLOGY_CITY, "") for binding in listing.items} if listing else set()
    return sorted(filter(None, codes))


def spelled(cities: Iterable[str], offered: Sequence[str], used: Iterable[str], project: str) -> tuple[str, ...]:
    """Each city once, as the platform spells it, or as typed if it is not known which cities are offered.

    A city that the workload already uses is accepted even if it is no longer offered.
    """
    typed = {code.lower(): code for code in cities}
    if not offered:
        return tuple(typed.values())
    accepted = {code.lower(): code for code in (*used, *offered)}
    for key, code in typed.items():
        if key not in accepted:
            raise usage(
                f'city "{code}" is not offered to project {project}; choose one of {", ".join(offered)}', "cities"
            )
    return tuple(accepted[key] for key in typed)


def not_offered_hints(run: Run, city: str | None) -> list[Line]:
    """For an empty list of what is in a city: that this city is not offered, if so."""
    if city is None:
        return []
    codes = offered(run.project)
    if not codes or city.lower() in map(str.lower, codes):
        return []
    sentence = f'City "{city}" is not offered to project {run.project.name}.'
    return hints(f"{sentence} Run '{run.try_next('cities')}' to list those that are.")
