"""What every room uses: files, import paths, texts, and calls of users' functions. Imports nothing from the rooms above it."""
