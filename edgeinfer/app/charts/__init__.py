"""Charts as SVG files, drawn without a plotting library."""
