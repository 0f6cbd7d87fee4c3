"""Features of many pictures: written to a file, searched, and compared for near-duplicates."""
