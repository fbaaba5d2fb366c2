"""The memory of an opened model: packed weights, KV pages, states, buffers, and the record of the present step."""
