"""How OpenVINO models represent each op: one file per op, with its nodes."""
