"""`python -m livectr` is `livectr`."""

import sys

from livectr.cli import main

if __name__ == "__main__":
    sys.exit(main())
