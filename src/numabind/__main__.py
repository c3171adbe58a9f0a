"""`python -m numabind` is the command."""

import sys

from numabind._cli import main

if __name__ == "__main__":
    sys.exit(main())
