"""The cost of work: what a stage has to do, and the seconds and bytes that it takes."""
