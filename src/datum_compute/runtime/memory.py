"""Garbage in a process that keeps many objects for long. Entry point: `collect_rarely`."""

import gc

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100  # net allocations, then collections of the generation before


def collect_rarely() -> None:
    """For programs, once, when their modules are loaded.

    What caches hold has no cycles and goes as soon as nobody refers to it. To look through all of it for cycles as
    often as Python does by itself was a fifth of the processor time where a few thousand objects were kept.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
