"""What a local federation says about its instances over HTTPS. Entry point: `Overview`."""

from msgspec import Struct, to_builtins

from datum_compute.kube.meta import Json
from datum_compute.local.census import OVERVIEW
from datum_compute.local.endpoints import Endpoints
from datum_compute.local.instances import Instances, in_words, name_of, unenforced_limits

__all__ = ["OVERVIEW", "Overview"]


class Overview(Struct, frozen=True):
    project: str  # the one whose workloads have addresses
    proxy: int  # the port of these addresses
    instances: Instances
    endpoints: Endpoints

    def document(self) -> Json:
        return {
            "project": self.project,
            "proxy": self.proxy,
            "instances": self.instances.mode,
            "endpoints": to_builtins(self.endpoints.all()),
            **self._engine(),
        }

    def _engine(self) -> Json:
        engine, info = self.instances.engine, self.instances.look()
        if engine is None:
            return {"summary": self.instances.summary, "engine": None}
        name = name_of(info) if info is not None else engine.name
        unenforced = unenforced_limits(info) if info is not None else ()
        return {
            "summary": in_words(name, answers=info is not None),
            "engine": {"name": name, "address": engine.address, "unenforced": unenforced},
        }
