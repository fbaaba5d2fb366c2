"""A plugin of pytest, `-p tests.platforms.as_darwin`: the tests' edgeinfer sees macOS."""

from tests.platforms.foreign_system import become

become("darwin")
