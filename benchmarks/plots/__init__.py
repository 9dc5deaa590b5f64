"""The plots of the documentation, drawn from what `--json` wrote; the same drawing for the same numbers."""
