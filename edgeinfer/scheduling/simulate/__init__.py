"""The machine on a virtual clock: tasks on resources, passes of placed models, and an executor without hardware."""
