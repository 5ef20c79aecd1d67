"""The fixed catalog of instance types. Entry point: `CATALOG`."""

from msgspec import Struct


class InstanceType(Struct, frozen=True):
    name: str
    millicores: int
    mebibytes: int


CATALOG = {one.name: one for one in (InstanceType("datumcloud/d1-standard-2", millicores=1000, mebibytes=2048),)}
