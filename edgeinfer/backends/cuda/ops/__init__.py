"""How the cuda device runs each op: a file for each, with the launches that it becomes."""
