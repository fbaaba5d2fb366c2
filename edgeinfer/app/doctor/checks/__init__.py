"""One file per thing that doctor looks at, or per group of closely related ones."""
