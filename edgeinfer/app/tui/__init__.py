"""The terminal app: screens and widgets on top of the engine thread and the saved chats."""
