"""Work on several computers by Ray (extra `ray`): replicas of the server behind one address, batches over all nodes."""
