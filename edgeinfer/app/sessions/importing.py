"""stand-in"""


def import_chat(store, path):
    pass
