"""Everything that compute-manager reports. Entry points: `METRICS`, `PREFIX`."""

from msgspec import structs

from datum_compute.admission.webhook import PATHS
from datum_compute.federation import roles
from datum_compute.federation.metrics import COMPUTE
from datum_compute.runtime.telemetry.table import PYTHON, ROLE, RUNTIME, WEBHOOK_PATH, Label, Metric

PREFIX = "compute_"
HOST = "host"  # the role of the cluster that the process works for, in its own name
ROLES = (roles.ROOT, roles.PROJECT, roles.HUB, roles.CELL, roles.CLAIMS, HOST)

_KNOWN = {ROLE.source: ROLES, WEBHOOK_PATH.source: PATHS}


def _here(metric: Metric) -> Metric:
    """The row with the values that its labels have in this program."""
    return structs.replace(metric.with_prefix(PREFIX), labels=tuple(map(_bounded, metric.labels)))


def _bounded(label: Label) -> Label:
    values = _KNOWN.get(label.source, ())
    return Label(label.name, values) if values else label


METRICS = tuple(map(_here, (*RUNTIME, *COMPUTE, *PYTHON)))
