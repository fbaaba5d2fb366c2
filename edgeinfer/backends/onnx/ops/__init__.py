"""How ONNX graphs have each op: a file for each, with the nodes that it becomes."""
