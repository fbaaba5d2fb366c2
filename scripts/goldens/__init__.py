"""What `make_goldens.py` is made of: cases, quantisation, GGUF writing and the judge."""
