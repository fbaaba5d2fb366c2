"""Parts of `make_goldens.py`: cases, quantisation, GGUF writing and the reference."""
