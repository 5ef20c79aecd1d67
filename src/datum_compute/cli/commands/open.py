"""Opens a workload of the local federation in a browser. Entry point: `command`."""

from datum_compute.api.workload import WORKLOAD, Workload
from datum_compute.cli.shell.failures import Exit, Failure
from datum_compute.cli.shell.flags import option, verb, workload_argument
from datum_compute.cli.shell.run import Run
from datum_compute.cli.show.specs import has_web_port
from datum_compute.cli.talk.entitlement import ENTITLED_PROJECT
from datum_compute.cli.talk.local import find_overview


@verb("open", needs=ENTITLED_PROJECT)
@workload_argument
@option("--city", metavar="CITY", help="City to begin in; by default the first one of its placements.")
@option("--print", "print_", is_flag=True, help="Print the address and open nothing.")
def command(run: Run, workload: str, city: str | None, print_: bool) -> None:
    """Open a workload of the local federation in a browser.

    Prints its address on this machine; outside a terminal, or with --print, that is all. A request goes to the first
    TCP port of an instance that is available, in the first city of the placements or the one that --city names; if that
    does not answer, to the next instance, and then to the next city. The header X-Datum-Instance of an answer names who
    gave it.
    """
    overview = find_overview(run)
    if overview is None:
        text = "only workloads of a local federation can be opened: elsewhere they have no address on this machine"
        raise Failure(text, Exit.UNAVAILABLE, next_command="local up")
    found = run.project.get(WORKLOAD, workload).object
    if run.project.name != overview.project:
        text = f"only workloads of project {overview.project} have an address on this machine"
        raise Failure(text, Exit.UNAVAILABLE)
    if not has_web_port(found.spec.template.spec):
        text = f'workload "{workload}" has no TCP port; name the one that its container listens on with --port'
        raise Failure(text, next_command=f"deploy {workload} --port=8080")
    url = overview.url(workload, _city(found, city) if city else "")
    run.terminal.name(url)
    if not overview.is_available(workload):
        run.terminal.aside(
            f"No instance of {workload} is available yet; '{run.try_next(f'status {workload}')}' says why."
        )
    if run.terminal.live and not print_:
        run.environment.browse(url)


def _city(workload: Workload, wanted: str) -> str:
    cities = sorted({code for placement in workload.spec.placements for code in placement.city_codes})
    city = wanted.upper()
    if city not in cities:
        text = f'workload "{workload.name}" does not run in {city}; choose one of {", ".join(cities)}'
        raise Failure(text, Exit.NOT_FOUND)
    return city
