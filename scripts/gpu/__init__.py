"""What `gpu_check.py` is made of: ceilings of the card, single kernels, whole models, models shared with the CPU."""
