"""City codes in the spelling of the platform. Entry points: `offered`, `spelled`."""

from collections.abc import Iterable, Sequence

from datum_compute.api.labels import TOPOLOGY_CITY
from datum_compute.api.networking import LOCATION_BINDING
from datum_compute.cli.shell.failures import usage
from datum_compute.cli.talk.project import Project


def offered(project: Project) -> list[str]:
    """The cities that the project may use, sorted; none when nobody tells."""
    listing = project.list_served(LOCATION_BINDING)
    codes = {binding.spec.topology.get(TOPOLOGY_CITY, "") for binding in listing.items} if listing else set()
    return sorted(filter(None, codes))


def spelled(cities: Iterable[str], offered: Sequence[str], used: Iterable[str], project: str) -> tuple[str, ...]:
    """Each city once, as the platform writes it; as typed where nobody knows what is offered.

    One that the workload uses already may stay, offered or not.
    """
    typed = {code.lower(): code for code in cities}
    if not offered:
        return tuple(typed.values())
    known = {code.lower(): code for code in (*used, *offered)}
    for key, code in typed.items():
        if key not in known:
            raise usage(
                f'city "{code}" is not offered to project {project}; choose one of {", ".join(offered)}', "cities"
            )
    return tuple(known[key] for key in typed)
