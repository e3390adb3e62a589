"""What else could be used on the same images: every way to search them, measured side by side."""
