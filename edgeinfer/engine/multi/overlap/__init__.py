"""One model on an accelerator and the CPU, whose sequences have their keys and values with one or the other."""
