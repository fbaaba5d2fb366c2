"""stand-in"""

from textual.screen import Screen


class Chosen:
    pass


class SettingsScreen(Screen):
    pass
