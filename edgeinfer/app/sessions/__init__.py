"""Saved chats: each is a tree of messages, all in one SQLite file."""
