"""The fixed catalog of instance types. Entry point: `CATALOG`."""

from msgspec import Struct


class InstanceType(Struct, frozen=True):
    name: str
    millicores: int
    mebibytes: int


_TYPES = (InstanceType("datumcloud/d1-standard-2", millicores=1000, mebibytes=2048),)

CATALOG = {type_.name: type_ for type_ in _TYPES}
