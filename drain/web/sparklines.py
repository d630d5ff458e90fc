"""Small curves, drawn as SVG."""
