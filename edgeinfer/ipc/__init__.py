"""Communication with other edgeinfer processes: starting them, connecting to them, exchanging records.

A message is a frozen dataclass, sent as JSON under its class name and validated against its type hints when received
(`records`, `channel`). `child` starts a module in a separate process and connects to it, from both sides.
"""
