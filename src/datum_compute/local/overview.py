"""What a local federation says about its instances over HTTPS. Entry point: `Overview`."""

from msgspec import Struct, to_builtins

from datum_compute.kube.meta import Json
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.instances import Instances

OVERVIEW = "/local/v1/endpoints"


class Overview(Struct, frozen=True):
    project: str  # the one whose workloads have addresses
    proxy: int  # the port of these addresses
    instances: Instances
    endpoints: Endpoints

    def document(self) -> Json:
        engine = self.instances.engine
        return {
            "project": self.project,
            "proxy": self.proxy,
            "instances": self.instances.mode,
            "engine": to_builtins(engine) if engine is not None else None,
            "endpoints": to_builtins(self.endpoints.all()),
        }
