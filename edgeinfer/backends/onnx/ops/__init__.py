"""How ONNX graphs represent each op: one file per op, with its nodes."""
