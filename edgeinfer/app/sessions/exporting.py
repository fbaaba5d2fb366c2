"""stand-in"""


def export_chat(store, number, path):
    pass
