"""Checks YAML from outside before it is loaded. Entry points: `check`, `building`, `TooMuch`.

The loader recurses in C, where deep nesting ends the process instead of raising, and an alias can stand for any amount
of data. Parser events cost neither stack nor memory, so they are counted first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_BYTES = 3 << 20  # what an API server accepts in one request
MAX_DEPTH = 100
MAX_NODES = 500_000  # with all aliases expanded


class TooMuch(ValueError):
    """The text is larger or deeper than any sensible document; the message completes "it is ..."."""


def check(text: str | bytes, max_depth: int = MAX_DEPTH) -> None:
    """Raises `TooMuch`, or the parser's error for text that is not YAML."""
    import yaml

    if len(text) > MAX_BYTES:
        raise TooMuch(f"larger than {MAX_BYTES >> 20} MiB")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}  # nodes behind each anchor, aliases expanded
    open_: list[tuple[str | None, int]] = []  # anchors of enclosing collections, and nodes before each
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
    """Turns the errors of a loader for tags that do not fit their value (`!!bool maybe`) into `ValueError`."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ValueError("a tag does not fit its value") from None
