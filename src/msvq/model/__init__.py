"""The parts: backbone, heads, split batch norm, teacher, queue and losses."""
