"""Which Instance is created, waited for or removed next."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Struct
from msgspec.structs import replace

from datum_compute.cell.ordering import Create, Delete, Member, Step, Wait, steps
from tests.conftest import count


def ready(ordinal: int | None, name: str = "", *, current: bool = True) -> Member:
    return Member(name or f"web-{ordinal}", ordinal, ready=True, deleting=False, current=current)


def waiting(ordinal: int, name: str = "", *, current: bool = True) -> Member:
    return Member(name or f"web-{ordinal}", ordinal, ready=False, deleting=False, current=current)


def starving(ordinal: int) -> Member:
    return replace(waiting(ordinal), starving=True)


def deleting(ordinal: int | None, name: str = "", *, current: bool = True) -> Member:
    return Member(name or f"web-{ordinal}", ordinal, ready=True, deleting=True, current=current)


def outdated(ordinal: int) -> Member:
    return ready(ordinal, current=False)


def broken(ordinal: int) -> Member:
    return waiting(ordinal, current=False)


TABLE: dict[str, tuple[list[Member], int, list[Step]]] = {
    # Only the first step is taken; the others show what would follow.
    "2 desired, none exist": ([], 2, [Create(0), Create(1)]),
    "2 Ready, template changed": ([outdated(0), outdated(1)], 2, [Delete("web-1"), Delete("web-0")]),
    "grow to 3 with 1 not Ready": ([ready(0), waiting(1)], 3, [Wait(1), Create(2)]),
    "grow to 3 with 1 deleting": ([ready(0), deleting(1)], 3, [Wait(1), Create(2)]),
    "2 Ready, desired 1": ([ready(0), ready(1)], 1, [Delete("web-1")]),
    "all Ready, same hash": ([ready(0), ready(1)], 2, []),
    "labels missing, otherwise fine": ([ready(0)], 1, []),  # PatchLabels is outside the order
    # Its consequences
    "1 is created only after 0 is Ready": ([waiting(0)], 2, [Wait(0), Create(1)]),
    "a hole is filled before the roll goes on": ([outdated(0), ready(2)], 3, [Create(1), Delete("web-0")]),
    "a roll goes on at the highest": ([outdated(0), outdated(1), ready(2)], 3, [Delete("web-1"), Delete("web-0")]),
    "a roll waits for the new one": ([outdated(0), waiting(1)], 2, [Wait(1), Delete("web-0")]),
    "a roll waits for the old one": ([outdated(0), deleting(1)], 2, [Wait(1), Delete("web-0")]),
    "surplus goes after the roll": ([outdated(0), ready(1)], 1, [Delete("web-0"), Delete("web-1")]),
    "surplus is no part of the roll": ([outdated(0), outdated(1)], 1, [Delete("web-0"), Delete("web-1")]),
    "surplus goes after what is waited for": ([waiting(0), ready(1)], 1, [Wait(0), Delete("web-1")]),
    "surplus goes first while one that stays lacks quota": (
        [starving(0), ready(1), ready(2)],
        1,
        [Delete("web-2"), Delete("web-1"), Wait(0)],
    ),
    "surplus that lacks quota is no reason to hurry": (
        [outdated(0), starving(1)],
        1,
        [Delete("web-0"), Delete("web-1")],
    ),
    "surplus goes from the highest": ([ready(n) for n in range(4)], 2, [Delete("web-3"), Delete("web-2")]),
    "surplus goes by number, not by name": ([ready(9), ready(10)], 0, [Delete("web-10"), Delete("web-9")]),
    "surplus that goes already is not deleted twice": ([ready(0), deleting(1)], 1, []),
    "scale to 0": ([waiting(0), outdated(1)], 0, [Delete("web-1"), Delete("web-0")]),
    "terminating in range blocks": ([deleting(0), outdated(1)], 2, [Wait(0), Delete("web-1")]),
    "terminating in range is not deleted twice": ([ready(0), deleting(1, current=False)], 2, [Wait(1)]),
    "terminating out of range does not": ([outdated(0), deleting(1)], 1, [Delete("web-0")]),
    # Outdated and not ready
    "outdated and not Ready is recreated": ([broken(0)], 1, [Delete("web-0")]),
    "outdated and not Ready, in its place of the ascent": (
        [waiting(0), broken(1), outdated(2)],
        3,
        [Wait(0), Delete("web-1"), Delete("web-2")],
    ),
    "outdated and not Ready, the lowest broken one first": (
        [broken(0), broken(1)],
        2,
        [Delete("web-0"), Delete("web-1")],
    ),
    "outdated and not Ready, before what is missing above": ([broken(0)], 2, [Delete("web-0"), Create(1)]),
    # Strays
    "no index": ([ready(0), ready(None, "odd")], 1, [Delete("odd")]),
    "negative index": ([ready(0), ready(-1, "odd")], 1, [Delete("odd")]),
    "a stray goes before everything else": ([ready(None, "odd"), deleting(0)], 2, [Delete("odd"), Wait(0), Create(1)]),
    "a stray that goes already does not hold up": ([ready(0), deleting(None, "odd")], 2, [Create(1)]),
    "the second one for a slot": ([ready(0), ready(0, "odd")], 1, [Delete("odd")]),
    "the one with the slot's name stays": ([ready(0), ready(0, "a")], 1, [Delete("a")]),
    "of two other names the first stays": ([ready(0, "b"), ready(0, "a")], 1, [Delete("b")]),
    "a slot may have any name": ([ready(0, "by-hand")], 1, []),
    "another slot's name is no place to stand": ([ready(1, "web-0")], 2, [Delete("web-0"), Create(0), Create(1)]),
    "nor out of range": ([ready(7, "web-0")], 1, [Delete("web-0"), Create(0)]),
}


@pytest.mark.parametrize(("members", "desired", "expected"), TABLE.values(), ids=TABLE.keys())
def test_the_steps_for_each_state_of_the_instances(
    members: Sequence[Member], desired: int, expected: list[Step]
) -> None:
    assert list(steps("web", members, desired)) == expected
    assert list(steps("web", [*reversed(members)], desired)) == expected


PAUSED: dict[str, tuple[list[Member], int, list[Step]]] = {
    "nothing is replaced": ([outdated(0), outdated(1)], 2, []),
    "nor what is broken": ([broken(0), outdated(1)], 2, [Wait(0)]),
    "what is missing is created": ([outdated(0)], 2, [Create(1)]),
    "scale-down goes on": ([outdated(0), outdated(1)], 1, [Delete("web-1")]),
    "strays go": ([outdated(0), ready(None, "odd")], 1, [Delete("odd")]),
    "what goes is waited for": ([outdated(0), deleting(1)], 2, [Wait(1)]),
}


@pytest.mark.parametrize(("members", "desired", "expected"), PAUSED.values(), ids=PAUSED.keys())
def test_while_paused_nothing_is_replaced_and_everything_else_continues(
    members: Sequence[Member], desired: int, expected: list[Step]
) -> None:
    assert list(steps("web", members, desired, paused=True)) == expected


changes = st.lists(st.tuples(st.sampled_from(["template", "scale", "steps"]), st.integers(0, 5)), max_size=30)


@given(changes)
def test_a_healthy_rollout_takes_at_most_one_instance_down(requests: list[tuple[str, int]]) -> None:
    """Deleted Instances are gone, and created ones ready, one step later."""
    running: dict[int, int] = {}  # ordinal to the template it runs
    template, desired = 0, 3

    def step() -> bool:
        members = [ready(ordinal, current=made_from == template) for ordinal, made_from in running.items()]
        for first in list(steps("web", members, desired))[:1]:
            match first:
                case Create(ordinal):
                    running[ordinal] = template
                case Delete(name):
                    del running[int(name.removeprefix("web-"))]
            return True
        return False

    while step():
        pass
    for what, amount in requests:
        if what == "template":
            template += 1
        elif what == "scale":
            desired = amount
        wanted = min(desired, len(running))
        lowest = wanted
        for _ in range(amount if what == "steps" else 0):
            step()
            lowest = min(lowest, len([ordinal for ordinal in running if ordinal < desired]))
        assert lowest >= wanted - 1
    while step():
        pass
    assert running == dict.fromkeys(range(desired), template)


class Copy(Struct, frozen=True):
    """An Instance of the model below."""

    ordinal: int | None
    template: int
    ready: bool = False
    deleting: bool = False


class Rollout(RuleBasedStateMachine):
    """Template, scale, failures, deletions and hands change as they like; the order is driven one step at a time.

    Odd templates never become ready. Whatever happened, a good template in the end must lead to an exact state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.template = 0
        self.desired = 2
        self.copies: dict[str, Copy] = {}

    # The environment

    @rule()
    def template_changes(self) -> None:
        self.template += 1

    @rule(desired=st.integers(0, 4))
    def scale_changes(self, desired: int) -> None:
        self.desired = desired

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def one_fails(self, data: st.DataObject) -> None:
        self._change(self._any(data), ready=False)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def one_starts(self, data: st.DataObject) -> None:
        name = self._any(data)
        self._change(name, ready=self.copies[name].template % 2 == 0)

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def one_is_deleted_by_hand(self, data: st.DataObject) -> None:
        self._change(self._any(data), deleting=True)

    @rule()
    def what_is_deleted_is_gone(self) -> None:
        self.copies = {name: copy for name, copy in self.copies.items() if not copy.deleting}

    @rule(name=st.sampled_from(["odd", "web-0", "web-1", "web-9"]), ordinal=st.none() | st.integers(-1, 4))
    def one_is_made_by_hand(self, name: str, ordinal: int | None) -> None:
        self.copies.setdefault(name, Copy(ordinal, template=0, ready=True))

    # The controller

    @rule()
    def one_pass(self) -> None:
        for step in self._steps()[:1]:
            if isinstance(step, Delete):
                self._check_service_before_deleting(step.name)
            self._do(step)

    @invariant()
    def nothing_outdated_is_waited_for(self) -> None:
        for step in self._steps():
            if isinstance(step, Wait):
                holders = [self.copies[name] for name in self._holders(step.ordinal)]
                assert any(copy.deleting or copy.template == self.template for copy in holders)

    def teardown(self) -> None:
        self.template += self.template % 2
        for _ in range(100):
            self.what_is_deleted_is_gone()
            self.copies = {name: replace(copy, ready=copy.template % 2 == 0) for name, copy in self.copies.items()}
            self.one_pass()
        assert self._steps() == []
        assert [self._holders(ordinal) for ordinal in range(self.desired)] == [[name] for name in self._by_ordinal()]
        assert all(copy.template == self.template and copy.ready for copy in self.copies.values())

    def _check_service_before_deleting(self, name: str) -> None:
        """A rollout or scale-down deletes no serving Instance while another desired one does not serve."""
        copy = self.copies[name]
        is_stray = copy.ordinal is None or self._holders(copy.ordinal) != [name]
        if not is_stray and copy.ready:
            serving = {other.ordinal for other in self.copies.values() if other.ready and not other.deleting}
            assert serving >= set(range(self.desired)) - {copy.ordinal}

    def _holders(self, ordinal: int) -> list[str]:
        """Instances that could fill an ordinal: not those with the name of another slot."""
        return [
            name
            for name, copy in self.copies.items()
            if copy.ordinal == ordinal >= 0 and name in (f"web-{ordinal}", "odd")
        ]

    def _by_ordinal(self) -> list[str]:
        return sorted(self.copies, key=lambda name: self.copies[name].ordinal or 0)

    def _steps(self) -> list[Step]:
        members = [
            Member(name, copy.ordinal, copy.ready, copy.deleting, copy.template == self.template)
            for name, copy in self.copies.items()
        ]
        return list(steps("web", members, self.desired))

    def _do(self, step: Step) -> None:
        match step:
            case Create(ordinal):
                self.copies.setdefault(f"web-{ordinal}", Copy(ordinal, self.template))
            case Delete(name):
                self._change(name, deleting=True)

    def _change(self, name: str, **fields: bool) -> None:
        self.copies[name] = replace(self.copies[name], **fields)

    def _any(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.copies)))


TestAnyRollout = Rollout.TestCase
TestAnyRollout.settings = settings(deadline=None, max_examples=count(60, 3000), stateful_step_count=30)
