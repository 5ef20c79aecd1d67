"""What users were warned of, read back from the events of a plane. Entry points: `warnings`, `Worded`."""

from msgspec import field

from datum_compute.kube.client import Client
from datum_compute.kube.errors import Forbidden
from datum_compute.kube.kinds import EVENT, Kind
from datum_compute.kube.meta import Json, KubeObject


class Worded(Forbidden):
    """A refusal in other words each time, as that of a webhook which names the request."""

    def __init__(self) -> None:
        super().__init__("denied")
        self.times = 0

    def status(self) -> Json:
        self.times += 1
        return Forbidden(f"denied, request {self.times}").status()


class Told(KubeObject, frozen=True):
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    about: Json = field(default_factory=dict, name="involvedObject")


_TOLD = Kind(EVENT.group, EVENT.version, EVENT.name, EVENT.plural, Told)


async def events(client: Client, namespace: str = "") -> list[Told]:
    return (await client.list(_TOLD, namespace)).items


async def warnings(client: Client, name: str, namespace: str = "default") -> list[Told]:
    """The warnings about the objects of this name, oldest first."""
    found = [one for one in (await client.list(_TOLD, namespace)).items if one.about.get("name") == name]
    return sorted((one for one in found if one.type == "Warning"), key=lambda one: one.metadata.revision)
