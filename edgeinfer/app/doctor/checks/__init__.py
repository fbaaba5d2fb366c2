"""The checks of doctor: one file per subject, or per group of closely related ones."""
