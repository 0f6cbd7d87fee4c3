"""Faults tried for real: `make faults` kills, fills, cuts and flips, and counts what was lost."""
