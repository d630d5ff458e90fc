"""drain/terminal."""
