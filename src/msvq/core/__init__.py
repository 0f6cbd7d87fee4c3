"""What knows nothing of learning: errors, console, files, settings, processes, devices and seeds."""
