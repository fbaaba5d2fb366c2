"""stand-in"""


class Personas:
    def __init__(self, folder=None):
        pass
