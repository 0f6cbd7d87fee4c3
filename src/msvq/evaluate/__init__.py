"""Is the encoder any good? Features, and what they can tell."""
