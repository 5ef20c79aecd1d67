"""Settings of the whole process, for long-running programs. Entry points: `allow_many_files`, `collect_rarely`."""

import gc
import resource
from contextlib import suppress

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 100  # net allocations, then collections of the generation before


def allow_many_files() -> None:
    """Raises the limit on open files and connections to the hard limit.

    The soft limit is often 1,024, too low for servers with many clients or planes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the kernel may allow less than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Makes garbage collection rare; to be called once, after all modules are loaded.

    Cached objects have no cycles and are freed by reference counting. With Python's default thresholds, searching a few
    thousand of them for cycles took a fifth of the processor time.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
