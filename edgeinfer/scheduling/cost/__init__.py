"""What work costs: what a stage has to do, and the seconds and bytes that it takes."""
