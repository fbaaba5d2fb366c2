"""A plugin of pytest, `-p tests.platforms.as_win32`: the tests' edgeinfer sees Windows."""

from tests.platforms.foreign_system import become

become("win32")
