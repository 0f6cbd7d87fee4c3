"""A run directory: its files, its encoder, and what is measured of it."""
