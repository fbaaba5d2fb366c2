"""Several answers to one request at the same time: driving them, stopping those that are not needed, keeping one."""
