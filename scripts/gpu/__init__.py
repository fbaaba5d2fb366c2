"""Parts of `gpu_check.py`: limits of the card, single kernels, whole models, models shared with the CPU."""
