"""What a step and a run cost on this machine: `msvq bench` and `msvq plan`."""
