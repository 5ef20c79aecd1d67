"""The accounts that write objects, as API servers name them. Entry points: `Accounts`, `cell_account`.

These are the service accounts that the shipped roles are meant for; an operator may use others.
"""

from collections.abc import Collection

from msgspec import Struct

from datum_compute.kube.admission import ADMINISTRATORS

NAMESPACE = "compute-system"
MANAGEMENT = "compute-management"
CELL = "compute-cell"  # of a cell without a name

# Karmada's account in a cell, as which the hub passes calls on, where its own commands have created it.
IMPERSONATOR, KARMADA_NAMESPACE = "karmada-impersonator", "karmada-cluster"

# Kubernetes itself; the last one where its controllers share an account.
GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
KUBERNETES = (GARBAGE_COLLECTOR, NAMESPACE_CONTROLLER, "system:kube-controller-manager")


def cell_account(cell: str) -> str:
    """The service account of a cell on the hub and in projects, whose name identifies the cell."""
    return f"{CELL}-{cell}"


def username(account: str, namespace: str = NAMESPACE) -> str:
    """The user name that an API server gives a service account."""
    return f"system:serviceaccount:{namespace}:{account}"


class Accounts(Struct, frozen=True):
    """Users and groups that are exempt from the rules for everybody else."""

    users: tuple[str, ...] = (username(MANAGEMENT),)
    groups: tuple[str, ...] = (ADMINISTRATORS,)

    def include(self, user: str, groups: Collection[str]) -> bool:
        return user in self.users or user in KUBERNETES or not set(groups).isdisjoint(self.groups)
