"""The paper's tables and figures again: what was published, the runs, and the comparison of the two."""
