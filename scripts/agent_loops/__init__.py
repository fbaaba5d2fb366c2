"""Loops of agents that talk to a server through several SDKs, and what must hold in each of their steps."""
