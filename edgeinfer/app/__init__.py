"""User interfaces, such as the command line and line chat. No numerics."""
