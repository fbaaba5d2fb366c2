"""The documentation site: its source tree, generated pages, drawings, and checks of what was built."""
