"""Who works on a plane, with the rights of the generated roles and no others. Entry point: `Identities`.

Each is a service account on that plane, bound to the ClusterRoles of `deploy/roles/<who>-on-<role>.yaml`; its
kubeconfig stands beside the administrator's.
"""

from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from datum_compute.kube.kubeconfig import load, write_kubeconfig
from datum_compute.kube.meta import Json
from engine import planes
from engine.harness import Engine

NAMESPACE = "compute-system"
_ROLES = planes.REPOSITORY / "deploy" / "roles"
_TOKEN_SECONDS = 24 * 3600
_RBAC = "rbac.authorization.k8s.io"


class Identities:
    """Makes what is missing; the same identity again gets a new token and nothing else."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def kubeconfig(self, who: str, plane: str, role: str, switches: Collection[str] = ()) -> Path:
        """For `who` (management, cell) on a plane that plays `role` for it; `switches` add their optional roles."""
        name = f"compute-{who}-on-{role}"
        account = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        api = self._engine.api(plane)
        try:
            api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
            api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named(name, NAMESPACE)})
            wanted = {name, *(f"{name}-{switch}" for switch in switches)}
            for document in planes.documents((_ROLES / f"{who}-on-{role}.yaml").read_text("utf-8")):
                if document["kind"] == "ClusterRole" and document["metadata"]["name"] in wanted:
                    api.apply(document)
                    api.apply(_binding(document["metadata"]["name"], account))
            token = api.token(name, NAMESPACE, _TOKEN_SECONDS)
        finally:
            api.close()
        admin = load([self._engine.kubeconfig(plane)])
        path = self._engine.folder.kubeconfigs / f"{who}-on-{role}-at-{plane}.yaml"
        endpoint = replace(admin, token=token, client_cert="", client_key="")
        write_kubeconfig(path, {name: endpoint}, current=name)
        return path


def _named(name: str, namespace: str = "") -> Json:
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def _binding(role: str, account: Json) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": _named(role),
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [account],
    }
