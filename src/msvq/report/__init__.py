"""The page a person looks at after training. Reads a run's files; never imports torch."""
