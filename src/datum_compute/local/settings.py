"""The cities and quota limits of a local federation: parsed, stored and changed.

Entry points: `Settings`, `read_cities`, `read_limits`.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from datum_compute.api import quantity
from datum_compute.api.quota import INSTANCES, MEMORY, VCPUS

DEFAULT_CITIES = {"DFW": "Dallas", "AMS": "Amsterdam", "SIN": "Singapore"}
MOST_CITIES = 100
_CODE = re.compile(r"[A-Z][A-Z0-9]{1,7}")
_LONGEST_NAME = 40
_LARGEST = 1_000_000_000

_LIMITS = {"instances": INSTANCES, "vcpus": VCPUS, "memory": MEMORY}


class Settings(Struct, frozen=True, rename="camel"):
    """`cities` holds names by code, in the order they were chosen; `limits` amounts by resource type.

    An empty part has not been chosen.
    """

    cities: dict[str, str] = {}
    limits: dict[str, int] = {}

    def over(self, stored: "Settings") -> "Settings":
        """These settings where they were chosen, else the stored ones. A city keeps the name it was given before."""
        cities = {code: name or stored.cities.get(code) or default_name(code) for code, name in self.cities.items()}
        return Settings(cities or stored.cities, stored.limits | self.limits)

    def agrees(self, others: "Settings") -> bool:
        """Whether a federation with the other settings satisfies these."""
        return self.over(others).cities == others.cities and self.limits.items() <= others.limits.items()


def default_name(code: str) -> str:
    return DEFAULT_CITIES.get(code, code)


def cell_of(code: str) -> str:
    """The name of the cell that serves a city."""
    return f"cell-{code.lower()}"


def read_cities(texts: Iterable[str]) -> dict[str, str]:
    """Names by code, from `DFW`, `FRA=Frankfurt` or several with commas between them; an empty name is not chosen.

    Raises `ValueError` with one sentence.
    """
    cities: dict[str, str] = {}
    for text in _items(texts):
        code, _, name = (part.strip() for part in text.partition("="))
        code = code.upper()
        if not _CODE.fullmatch(code):
            raise ValueError(
                f'"{text}" is not a city: write a code of 2 to 8 letters and digits, like FRA or FRA=Frankfurt'
            )
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"the name of city {code} is not valid: use at most {_LONGEST_NAME} printable characters")
        if name and cities.get(code, name) not in ("", name):
            raise ValueError(f"city {code} has two names, {cities[code]} and {name}; choose one")
        cities[code] = name or cities.get(code, "")
    if len(cities) > MOST_CITIES:
        raise ValueError(f"{len(cities)} cities are too many for one machine; choose at most {MOST_CITIES}")
    return cities


def read_limits(texts: Iterable[str]) -> dict[str, int]:
    """Amounts by resource type in the units of quota, from `instances=50`, `vcpus=16` or `memory=64Gi`.

    Raises `ValueError` with one sentence.
    """
    limits: dict[str, int] = {}
    for text in _items(texts):
        name, _, amount = (part.strip() for part in text.partition("="))
        if name.lower() not in _LIMITS or not amount:
            raise ValueError(f'"{text}" is not a limit: write it like instances=50, vcpus=16 or memory=64Gi')
        type_ = _LIMITS[name.lower()]
        limits[type_] = _amount(type_, text, amount)
    return limits


def _amount(type_: str, text: str, amount: str) -> int:
    read, example = _AMOUNTS[type_]
    try:
        number = read(amount)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f'"{text}" is not a limit: write it like {example}')
    if number > _LARGEST:
        raise ValueError(f'"{text}" is more than quota can count; choose less')
    return number


def _count(amount: str) -> int:
    return int(amount) if amount.isdecimal() and len(amount) < 18 else 0


_AMOUNTS: dict[str, tuple[Callable[[str], int], str]] = {
    INSTANCES: (_count, "instances=50"),
    VCPUS: (quantity.millicores, "vcpus=16"),
    MEMORY: (quantity.mebibytes, "memory=64Gi"),
}


def limits_in_words(limits: Mapping[str, int]) -> str:
    """The known limits as `10 instances, 40 vCPUs, 80 GiB of memory`."""
    words = []  # ten digits are enough for the largest limit, without an exponent
    if INSTANCES in limits:
        words.append(f"{limits[INSTANCES]} instances")
    if VCPUS in limits:
        words.append(f"{limits[VCPUS] / 1000:.10g} vCPUs")
    if MEMORY in limits:
        words.append(f"{limits[MEMORY] / 1024:.10g} GiB of memory")
    return ", ".join(words)


def _items(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
