"""An evaluator in a separate process: a crash there ends that process and not ours."""
