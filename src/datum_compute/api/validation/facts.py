"""What the rules need to know about the cluster. Entry point: `Facts`."""

from msgspec import Struct


class Facts(Struct, frozen=True):
    """What the rules need to know about the cluster."""

    cities: tuple[str, ...] | None = None  # offered to the project, sorted; not checked if None
    unavailable: dict[str, str] = {}  # offered cities that cannot be used now, with the cause; refused on CREATE only
    denied_networks: tuple[str, ...] = ()  # networks that the caller may not use
    failed_reviews: dict[str, str] = {}  # networks whose access review failed, with the error
