"""How weights, buffers and pages lie in memory, and the records of kernels: what Python and compiled code share."""
