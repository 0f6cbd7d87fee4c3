"""The loop and what it needs: schedule, precision, checkpoints, the run's log."""
