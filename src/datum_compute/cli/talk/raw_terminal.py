"""A terminal that is handed to a program elsewhere. Entry points: `raw`, `resizes`, `size`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def raw(terminal: int) -> Iterator[None]:
    """Every key, Ctrl-C too, is passed on as it is typed. Whatever ends the block, the terminal is as before."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


@contextmanager
def resizes() -> Iterator[int]:
    """A file descriptor that can be read when the size of the terminal has changed."""
    import signal

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def tell(number: int, frame: object) -> None:
        with suppress(BlockingIOError):  # enough was said
            os.write(writing, b"\0")

    before = signal.signal(signal.SIGWINCH, tell)
    try:
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)


def size(terminal: int) -> tuple[int, int] | None:
    """Columns and rows; None if the terminal does not know."""
    try:
        columns, rows = os.get_terminal_size(terminal)
    except OSError:
        return None
    return (columns, rows) if columns and rows else None
