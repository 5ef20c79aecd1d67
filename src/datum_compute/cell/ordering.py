"""Which single thing to do next for a deployment's Instances. Entry point: `steps`.

Instances are created in ascending order, replaced in descending order, and surplus ones are deleted last, unless one
that stays lacks the quota that they may hold. A broken Instance on an old template is replaced at once, so that it can
never block its own fix.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from datum_compute.api.names import instance_name, ordinal_of


class Member(Struct, frozen=True):
    """One Instance as far as the order is concerned. `ordinal` is None when neither label nor name says it."""

    name: str
    ordinal: int | None
    ready: bool
    deleting: bool
    current: bool  # created from the desired template
    starving: bool = False  # waits for quota


class Create(Struct, frozen=True, tag=True):
    ordinal: int


class Wait(Struct, frozen=True, tag=True):
    ordinal: int


class Delete(Struct, frozen=True, tag=True):
    name: str


Step = Create | Wait | Delete


def steps(deployment: str, members: Iterable[Member], desired: int, *, paused: bool = False) -> Iterator[Step]:
    """All steps, in order. Only the first is taken now; a `Wait` does nothing but holds up the ones after it.

    While paused, every Instance counts as current: none is replaced, and everything else continues.
    """
    slots, strays = _slots(deployment, [replace(member, current=True) for member in members] if paused else members)
    desired_ordinals = [ordinal for ordinal in sorted(slots) if ordinal < desired]
    surplus = [ordinal for ordinal in sorted(slots, reverse=True) if ordinal >= desired]
    removals = [Delete(slots[ordinal].name) for ordinal in surplus if not slots[ordinal].deleting]
    is_short_of_quota = any(slots[ordinal].starving for ordinal in desired_ordinals)
    yield from (Delete(stray.name) for stray in strays if not stray.deleting)
    if is_short_of_quota:
        yield from removals  # else they would wait for each other forever
    yield from _ascending(slots, desired)
    yield from (Delete(slots[ordinal].name) for ordinal in reversed(desired_ordinals) if _outdated(slots[ordinal]))
    if not is_short_of_quota:
        yield from removals


def _ascending(slots: dict[int, Member], desired: int) -> Iterable[Step]:
    for ordinal in range(desired):
        match slots.get(ordinal):
            case None:
                yield Create(ordinal)
            case Member(deleting=True):
                yield Wait(ordinal)
            case Member(ready=False, current=False, name=name):
                yield Delete(name)
            case Member(ready=False):
                yield Wait(ordinal)


def _outdated(member: Member) -> bool:
    return member.ready and not member.current and not member.deleting


def _slots(deployment: str, members: Iterable[Member]) -> tuple[dict[int, Member], Sequence[Member]]:
    """The Instance per ordinal, and the strays: without an ordinal, second in a slot, or with another slot's name."""
    slots: dict[int, Member] = {}
    others: list[Member] = []
    for member in members:
        ordinal = member.ordinal
        if ordinal is not None and ordinal >= 0 and member.name == instance_name(deployment, ordinal):
            slots[ordinal] = member
        else:
            others.append(member)
    strays: list[Member] = []
    for member in sorted(others, key=lambda member: member.name):
        ordinal = member.ordinal
        if ordinal is None or ordinal < 0 or ordinal in slots or _blocks_a_slot(deployment, member):
            strays.append(member)
        else:
            slots[ordinal] = member
    return slots, strays


def _blocks_a_slot(deployment: str, member: Member) -> bool:
    """Whether it has the name of another slot, which could then never be filled."""
    named = ordinal_of(member.name)
    return named not in (None, member.ordinal) and member.name == instance_name(deployment, named)
