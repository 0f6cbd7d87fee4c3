"""`python -m msvq` is `msvq`."""

import sys

from msvq.core.launch import safe_path

if __name__ == "__main__":
    sys.path[:] = safe_path()  # `-m` has put the current folder first; what is imported from here on is not from there
    from msvq.cli import main

    main()
