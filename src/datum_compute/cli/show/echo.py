"""What a terminal shows of the keys that are typed there. Entry point: `Echo`."""

import os
from typing import TextIO


class Echo:
    """The echo of a terminal, which is off while content is redrawn: what is typed meanwhile would move that content.

    Nothing that is typed is lost. The shell reads and shows it when the command has ended.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._before: list[int | list[bytes | int]] | None = None

    def off(self) -> None:
        """Turns it off, also again: a shell that got its terminal back by Ctrl-Z has turned it on."""
        import termios

        if not self._in_foreground():
            return
        before = termios.tcgetattr(self._stream.fileno())
        local_modes = before[3]
        assert isinstance(local_modes, int)
        if local_modes & termios.ECHO:
            without = [*before[:3], local_modes & ~termios.ECHO, *before[4:]]
            termios.tcsetattr(self._stream.fileno(), termios.TCSANOW, without)
            self._before = before

    def restore(self) -> None:
        import termios

        if self._before is not None and self._in_foreground():
            termios.tcsetattr(self._stream.fileno(), termios.TCSANOW, self._before)
            self._before = None

    def _in_foreground(self) -> bool:
        """Whether this is our terminal to change; a job in the background would be stopped for it."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):  # no terminal, or not the one that we run in
            return False
