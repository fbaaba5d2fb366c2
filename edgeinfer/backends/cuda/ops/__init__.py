"""How the CUDA device runs each op: one file per op, with its launches."""
