"""Who works on the planes, with the rights of the generated roles and no others. Entry points: `identities`, `admit`.

Each is a service account of a plane, bound to the roles in `deploy/roles/` that begin with `<who>-on-<role>`, and held
to the policies in `deploy/policies/<role>/`.
"""

from collections.abc import Collection, Iterator

from msgspec import Struct

from datum_compute.api.accounts import IMPERSONATOR, KARMADA_NAMESPACE, NAMESPACE
from datum_compute.api.permissions import FRONT_PROXY_NAMESPACE, On, When, Who
from datum_compute.api.roles import features, role_name
from datum_compute.federation import roles
from datum_compute.kube.meta import Json
from engine import planes
from engine.api import Api
from engine.settings import HOST_PLANE, Plane

_ROLES = planes.REPOSITORY / "deploy" / "roles"
_POLICIES = planes.REPOSITORY / "deploy" / "policies"
_TOKEN_SECONDS = 24 * 3600
_RBAC = "rbac.authorization.k8s.io"

# Optional features that this engine needs: it has no Milo, service catalog or network operator.
DEFAULT_SWITCHES = (
    When.LEADER_ELECTION,
    When.EXECUTION_SPACE,
    When.ABANDONED_CLAIMS,
    When.ENTITLEMENT,
    When.QUOTA,
    When.LOCATIONS,
    When.NETWORKING,
    When.NETWORK,
)


class Identity(Struct, frozen=True):
    who: Who
    plane: str
    roles: tuple[On, ...]  # what the plane is for them
    cells: tuple[str, ...] = ()  # the cell that it acts for on the hub
    called: str = ""  # tells several apart: the name of a cell, or the purpose of a user
    also: tuple[When, ...] = ()  # roles of this identity whatever the switches

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.who.value, self.called)))

    @property
    def account(self) -> str:
        return IMPERSONATOR if self.who is Who.KARMADA else f"compute-{self.name}"

    @property
    def namespace(self) -> str:
        return KARMADA_NAMESPACE if self.who is Who.KARMADA else NAMESPACE


def identities(every: Collection[Plane]) -> list[Identity]:
    cells = tuple(plane.name for plane in every if plane.role == roles.CELL)
    return [identity for plane in every for identity in _on(plane, cells)]


def admit(api: Api, identity: Identity, switches: Collection[When] = DEFAULT_SWITCHES) -> str:
    """Gives exactly these rights, and returns a token for a day."""
    home = identity.namespace
    account = {"kind": "ServiceAccount", "name": identity.account, "namespace": home}
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home}})
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _named(identity.account, home)})
    for role, wanted in _roles(identity, switches):
        for placed in _placed(identity, role):
            binding = _binding(placed, account, identity.called)
            if wanted:
                api.apply(placed)
                api.apply(binding)
            else:
                api.delete(binding)
    return api.token(identity.account, home, _TOKEN_SECONDS)


def policies(api: Api, plane: Plane) -> None:
    """Applies the policies of the plane, which bind everybody but administrators."""
    file = _POLICIES / plane.role / "policies.yaml"
    for body in planes.documents(file.read_text("utf-8")) if file.exists() else ():
        api.apply(body)


def _on(plane: Plane, cells: tuple[str, ...]) -> Iterator[Identity]:
    """On other planes each cell has its own account; one more is for cells without a name."""
    match plane.role:
        case roles.PROJECT:
            host = (On.HOST,) if plane.name == HOST_PLANE else ()
            yield Identity(Who.MANAGEMENT, plane.name, (*host, On.PROJECT))
            yield Identity(Who.CELL, plane.name, (On.PROJECT,))
            yield from (Identity(Who.CELL, plane.name, (On.PROJECT,), called=cell) for cell in cells)
            yield Identity(Who.USER, plane.name, (On.PROJECT,))
            restarting = When.CITY_RESTART
            yield Identity(Who.USER, plane.name, (On.PROJECT,), called=restarting.value, also=(restarting,))
        case roles.HUB:
            yield Identity(Who.MANAGEMENT, plane.name, (On.HUB,))
            yield Identity(Who.CELL, plane.name, (On.HUB,), cells)
            yield from (Identity(Who.CELL, plane.name, (On.HUB,), (cell,), called=cell) for cell in cells)
        case roles.CELL:
            yield Identity(Who.CELL, plane.name, (On.CELL,))
            yield Identity(Who.MANAGEMENT, plane.name, (On.CELL,))
            yield Identity(Who.KARMADA, plane.name, (On.CELL,))


def _roles(identity: Identity, switches: Collection[When]) -> Iterator[tuple[Json, bool]]:
    """Every role of an identity, and whether it is switched on."""
    for on in identity.roles:
        switched = (When.ALWAYS, *switches, *identity.also)
        for when in features(identity.who, on):
            folder = _ROLES / role_name(identity.who, on, when).removeprefix("compute-")
            [role] = planes.documents((folder / "role.yaml").read_text("utf-8"))
            yield role, when in switched


def _placed(identity: Identity, role: Json) -> Iterator[Json]:
    """The binding of a role: everywhere, in the namespace of the process, or in Karmada's namespaces for cells."""
    if role["kind"] == "ClusterRole":
        yield role
    elif role["metadata"]["name"].endswith(When.EXECUTION_SPACE.value):
        for cell in identity.cells:
            yield role | {"metadata": role["metadata"] | {"namespace": f"karmada-es-{cell}"}}
    elif role["metadata"]["name"].endswith(When.FRONT_PROXY.value):
        yield role | {"metadata": role["metadata"] | {"namespace": FRONT_PROXY_NAMESPACE}}
    else:
        yield role | {"metadata": role["metadata"] | {"namespace": NAMESPACE}}


def _named(name: str, namespace: str = "") -> Json:
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def _binding(role: Json, account: Json, called: str) -> Json:
    metadata = role["metadata"]
    name = "-".join(filter(None, (metadata["name"], called)))
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{role['kind']}Binding",
        "metadata": _named(name, metadata.get("namespace", "")),
        "roleRef": {"apiGroup": _RBAC, "kind": role["kind"], "name": metadata["name"]},
        "subjects": [account],
    }
