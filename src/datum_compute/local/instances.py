"""What runs the instances of a local federation in this process. Entry points: `Instances`, `simulated_instances`."""

from msgspec import Struct

from datum_compute.federation.lives import Recorder
from datum_compute.local.choice import SIMULATED
from datum_compute.local.endpoints import Published
from datum_compute.local.federation import simulated
from datum_compute.local.state import Engine
from datum_compute.providers.simulated import Behaviour
from datum_compute.runtime import Reconciler

# Long enough that a roll can be seen, short enough that nobody waits.
BEHAVIOUR = Behaviour(start_seconds=0.3, stop_seconds=0.2)


class Instances(Struct, frozen=True):
    """`published` is None if they have no ports on this machine, because they are simulated."""

    mode: str  # containers or simulated
    summary: str  # the same in words
    provider: Reconciler
    published: Published | None = None
    engine: Engine | None = None
    notes: list[str] = []  # lines for whoever starts it


def simulated_instances(reason: str = "", *, recorder: Recorder | None = None) -> Instances:
    """`reason` says why they are simulated, if nobody asked for it. `recorder` gets what their logs need."""
    summary = f"simulated ({reason})" if reason else "simulated"
    return Instances(SIMULATED, summary, simulated(BEHAVIOUR, recorder))
