"""What was observed before a start, for `judgement` to judge. Entry points: the Structs."""

from datetime import timedelta

from msgspec import Struct

from datum_compute.api.crd import AnyKind
from datum_compute.operator.check.needs import Right
from datum_compute.operator.check.validity import Validity
from datum_compute.runtime.caches.phases import Phase


class Failure(Struct, frozen=True):
    """Why a plane could not be used, and what to check."""

    phase: Phase
    sentence: str
    advice: str


class KindFacts(Struct, frozen=True):
    kind: AnyKind
    served: bool
    other_versions: tuple[str, ...] = ()  # served instead
    missing_subresources: tuple[str, ...] = ()
    missing_fields: tuple[str, ...] | None = ()  # None: the server does not publish its schema


class Registration(Struct, frozen=True):
    """A webhook that leads to this process, as an API server has it."""

    plane: str
    name: str
    host: str  # that API servers call
    path: str
    bundle: bytes  # the authorities that they trust


class PlaneFacts(Struct, frozen=True):
    plane: str
    source: str  # the flag, field or file that names it
    failure: Failure | None = None
    version: str = ""
    skew: timedelta | None = None  # by which the server's clock is ahead; None when it does not say
    user: str = ""
    validities: tuple[Validity, ...] = ()
    rights: tuple[Right, ...] = ()
    denied: frozenset[Right] = frozenset()
    unreviewed: str = ""  # why the rights are not known
    kinds: tuple[KindFacts, ...] = ()
    undiscovered: str = ""  # why the kinds are not known
    registrations: tuple[Registration, ...] | None = None  # None: they cannot be read


class ClusterFacts(Struct, frozen=True):
    name: str
    city: str
    ready: bool
    serves: bool  # whether it is the one that serves its city


class LeaseFacts(Struct, frozen=True):
    """The lease of leader election; `holder` is empty when nobody holds it."""

    namespace: str
    name: str
    holder: str = ""
    namespace_exists: bool = True
    failure: str = ""


class NameFacts(Struct, frozen=True):
    """The name of a cell on the hub."""

    name: str
    space: str  # the namespace that Karmada keeps for the cell
    space_exists: bool = True
    holder: str = ""  # the uid of another cluster that holds the name now
    failure: str = ""


class ProjectFile(Struct, frozen=True):
    """A kubeconfig of a project, missing or unusable."""

    project: str
    sentence: str
    advice: str


class ProjectsFacts(Struct, frozen=True):
    """Which projects there are; `tried` is a sample of them when there are many."""

    place: str  # where they were looked for
    names: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    files: tuple[ProjectFile, ...] = ()
    failure: str = ""


class ServingFacts(Struct, frozen=True):
    """A server of this process: its address, and its certificate unless it has none or signs its own."""

    server: str  # health, metrics, webhook
    field: str  # the flag or field with its address
    running: bool = False  # whether the process is expected to use the address
    occupied: str = ""  # why nobody else can listen
    unusable: str = ""  # why the certificate cannot be used
    certificate: Validity | None = None
    certificate_source: str = ""


class TrustFacts(Struct, frozen=True):
    """Whether an API server would accept the certificate of this process."""

    registration: Registration
    failure: str = ""
    not_compared: str = ""  # why it is unknown
