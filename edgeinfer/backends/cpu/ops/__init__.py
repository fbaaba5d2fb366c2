"""How the cpu runs each op: one file per op, with the kernels that it needs and the calls that it becomes."""
