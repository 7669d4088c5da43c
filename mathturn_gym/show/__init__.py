"""Notebook displays (`notebook`), reports of episodes (`evaluation`) and the viewer of episodes (`view`).

Their parts: pages from the templates of `assets/` (`pages`), charts (`charts`) and tables (`tables`).
"""
