"""What runs the instances of a local federation: containers, or a simulation. Entry point: `choose`."""

from enum import Enum

from msgspec import Struct

CONTAINERS = "containers"
SIMULATED = "simulated"
AUTO = "auto"
WORDS = (AUTO, CONTAINERS, SIMULATED)

VARIABLE = "DATUM_COMPUTE_INSTANCES"
ENGINE_VARIABLE = "DATUM_COMPUTE_ENGINE"


class Wish(Struct, frozen=True):
    """The flags of `up`; an empty one was not given, and its variable counts instead."""

    instances: str = ""
    engine: str = ""  # an address
    leave: bool = False  # whether containers may be left behind


class Situation(Struct, frozen=True):
    wish: str  # one of `WORDS`
    remembered: str  # CONTAINERS, SIMULATED or, at the first start, empty
    has_instances: bool
    answers: bool  # whether a container engine does
    leave: bool = False


class Former(Enum):
    """What happens to the containers that run the instances so far."""

    STAY = "stay"  # they are still needed, or there are none
    REMOVED = "removed"
    LEFT = "left"  # behind, for the user to remove


class Choice(Struct, frozen=True):
    instances: str
    former: Former = Former.STAY
    waits: bool = False  # for the engine to answer
    offers: bool = False  # containers could be had


class Refusal(Enum):
    NO_ENGINE = "no engine"
    HELD = "held"  # the containers of the instances are out of reach


def choose(situation: Situation) -> Choice | Refusal:
    """What runs is never swapped for a simulation, nor a simulation for containers, unless the user says so."""
    match situation:
        case Situation(wish="simulated", remembered="containers", leave=True):
            return Choice(SIMULATED, Former.LEFT)
        case Situation(wish="simulated", remembered="containers", answers=True):
            return Choice(SIMULATED, Former.REMOVED)
        case Situation(wish="simulated", remembered="containers", has_instances=True):
            return Refusal.HELD
        case Situation(wish="simulated"):
            return Choice(SIMULATED)
        case Situation(wish="containers", answers=True):
            return Choice(CONTAINERS)
        case Situation(wish="containers"):
            return Refusal.NO_ENGINE
        case Situation(remembered="containers"):
            return Choice(CONTAINERS, waits=not situation.answers)
        case Situation(remembered="simulated", has_instances=True):
            return Choice(SIMULATED, offers=situation.answers)
    return Choice(CONTAINERS if situation.answers else SIMULATED)


def needs_engine(wish: str, remembered: str, *, leave: bool = False) -> bool:
    """Whether an engine is looked for at all. Nobody's engine is touched for a simulation, unless to remove ours."""
    return wish != SIMULATED or (remembered == CONTAINERS and not leave)
