"""Textual's driver of POSIX terminals, for a process that others stop and continue (SIGSTOP, SIGCONT).

Textual takes every SIGCONT for the end of its own suspension, and begins to read keys once more: then two threads share
the keys, and the app waits at its end for one more. Empty on Windows, which has no such signals.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import termios

    from textual.drivers.linux_driver import LinuxDriver

    LOCAL_MODES = 3
    """Place of the local modes in what termios tells."""

    class PosixTerminal(LinuxDriver):
        """A driver that goes on where it was, or takes the terminal again if a shell has used it meanwhile."""

        _is_taking = False

        def _sigcont_application(self, *signal_and_frame: object) -> None:
            keys = self._key_thread
            if keys is None or not keys.is_alive():
                super()._sigcont_application(*signal_and_frame)
            elif self._is_another_program_in_it() and not self._is_taking:
                self._is_taking = True
                try:
                    self.suspend_application_mode()
                    self.resume_application_mode()
                finally:
                    self._is_taking = False

        def _is_another_program_in_it(self) -> bool:
            """Whether the terminal is set for lines, as shells leave it, and not for keys."""
            try:
                return bool(termios.tcgetattr(self.fileno)[LOCAL_MODES] & (termios.ECHO | termios.ICANON))
            except termios.error:  # it has gone
                return False
