"""An evaluator in a process of its own: what crashes there ends that process and not ours."""
