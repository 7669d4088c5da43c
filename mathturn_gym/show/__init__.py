"""What people look at: notebook displays (`notebook`), HTML pages (`pages`), and the viewer of episodes (`view`)."""
