"""Settings that come with the package, one YAML file per data set."""
