"""All admission rules of compute, for a server in this process. Entry point: `admit`."""

from collections.abc import Sequence

from datum_compute.admission import deployments, workloads
from datum_compute.kube.admission import Review
from datum_compute.kube.errors import Cause


def admit(review: Review) -> Sequence[Cause]:
    return [*deployments.admit(review), *workloads.admit(review)]
