"""FACES: command line and line chat. No numerics."""
