"""From ops to kernel calls: what is decided from the header alone, and the calls of each kind of op."""
