"""How weights, buffers and pages lie in memory, and the records of kernels: all that Python and compiled code share."""
