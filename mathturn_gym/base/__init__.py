"""What every room uses: files, import paths, texts, and calls of users' functions. Imports nothing from the rooms above it."""

from typing import Final

VERSION: Final = "0.1.0"
"""The package's version, as pyproject.toml has it."""
