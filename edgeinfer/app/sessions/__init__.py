"""Chats that are kept: a tree of messages each, in one SQLite file."""
