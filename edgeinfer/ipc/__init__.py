"""Communication with other processes of edgeinfer: starting them, connecting to them, exchanging records.

A message is a frozen dataclass, sent as JSON under its class name and validated by its type hints when it is received
(`records`, `channel`). `child` starts a module in a process of its own and connects to it, `parent` is the other side.
"""
