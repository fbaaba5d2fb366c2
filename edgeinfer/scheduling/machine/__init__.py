"""Machines as numbers: topology, measured profiles, and profiles of machines that nobody measured."""
