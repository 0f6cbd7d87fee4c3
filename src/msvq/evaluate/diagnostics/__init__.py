"""What is going on inside a run: numbers that explain, rather than judge."""
