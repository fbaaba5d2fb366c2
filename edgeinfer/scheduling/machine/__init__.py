"""Machines as numbers: topology, measured profiles, and assumed profiles of machines that were never measured."""
