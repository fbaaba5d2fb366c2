"""How the cpu runs each op: a file for each, with the kernels that it needs and the calls that it becomes."""
