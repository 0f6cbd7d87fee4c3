"""`python -m msvq` is `msvq`."""

from msvq.cli import main

if __name__ == "__main__":
    main()
