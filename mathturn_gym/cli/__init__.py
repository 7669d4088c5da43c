"""The `mathturn` command."""
