"""The supported part of LogQL. Entry points: `Query`, `parse`."""

from msgspec import Struct


class Matcher(Struct, frozen=True):
    label: str
    operator: str  # =, !=, =~, !~
    value: str


class Filter(Struct, frozen=True):
    operator: str  # |=, !=
    text: str


class Query(Struct, frozen=True):
    matchers: tuple[Matcher, ...]
    filters: tuple[Filter, ...] = ()
