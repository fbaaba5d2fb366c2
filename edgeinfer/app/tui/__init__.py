"""The terminal app: screens and widgets over the engine's thread and the kept chats."""
