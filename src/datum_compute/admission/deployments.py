"""Who may change the deployments of a project. Entry points: `admit`, `refused`."""

from collections.abc import Sequence

from datum_compute.api.accounts import Accounts
from datum_compute.api.deployment import WORKLOAD_DEPLOYMENT
from datum_compute.api.validation.deployments import deployment_refusal
from datum_compute.federation.roles import PROJECT
from datum_compute.kube.admission import Review
from datum_compute.kube.errors import Cause, Forbidden, Subject

_ACCOUNTS = Accounts()


def admit(review: Review) -> Sequence[Cause]:
    """Raises `Forbidden`. Only project planes are checked; on hub and cells, roles reserve deployments for compute."""
    if review.resource != WORKLOAD_DEPLOYMENT.resource or review.role != PROJECT:
        return ()
    if _ACCOUNTS.include(review.user.name, review.user.groups):
        return ()
    if sentence := deployment_refusal(review.operation, review.subresource, review.before, review.after):
        raise refused(review.name, sentence)
    return ()


def refused(name: str, sentence: str) -> Forbidden:
    kind = WORKLOAD_DEPLOYMENT
    about = Subject(name, kind.group, kind.plural)
    return Forbidden(f'{kind.resource} "{name}" is forbidden: {sentence}', about=about)
