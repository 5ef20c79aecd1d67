"""YAML from outside, looked through before anything is built from it. Entry points: `check`, `building`, `TooMuch`.

The loader builds by recursion in C, where depth ends the process instead of raising, and an alias stands for any
amount. Events cost neither stack nor memory, so they are counted first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_BYTES = 3 << 20  # what an API server takes in one request
MAX_DEPTH = 100
MAX_NODES = 500_000  # with every alias written out


class TooMuch(ValueError):
    """The text is larger or deeper than any document that is meant seriously; the message completes "it is ..."."""


def check(text: str | bytes, max_depth: int = MAX_DEPTH) -> None:
    """Raises `TooMuch`, or what the YAML parser raises for a text that is no YAML."""
    import yaml

    if len(text) > MAX_BYTES:
        raise TooMuch(f"larger than {MAX_BYTES >> 20} MiB")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}  # nodes behind each anchor, aliases written out
    open_: list[tuple[str | None, int]] = []  # anchors of the collections around, and how many nodes came before each
    nodes = 0
    for event in yaml.parse(text, Loader=loader):
        match event:
            case yaml.CollectionStartEvent():
                open_.append((event.anchor, nodes))
                nodes += 1
                if len(open_) > max_depth:
                    raise TooMuch(f"nested more than {max_depth} levels deep")
            case yaml.CollectionEndEvent():
                anchor, before = open_.pop()
                if anchor:
                    sizes[anchor] = nodes - before
            case yaml.AliasEvent(anchor=str(name)):
                if any(anchor == name for anchor, _ in open_):
                    raise TooMuch(f"endless: what *{name} stands for contains itself")
                nodes += sizes.get(name, 1)
            case yaml.ScalarEvent():
                nodes += 1
                if event.anchor:
                    sizes[event.anchor] = 1
        if nodes > MAX_NODES:
            raise TooMuch(f"a document of more than {MAX_NODES:,} values")


@contextmanager
def building() -> Iterator[None]:
    """Around a loader, which stumbles over tags that do not fit their values (`!!bool maybe`): a `ValueError` here."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError("a tag does not fit its value") from None
