"""A rank of `run_ranks`: imports a module as `livectr` imports its own, and calls its `main()`.

rank.py MODULE ARGUMENT ...
"""

import importlib
import sys

from livectr.system.heap import loading

if __name__ == "__main__":
    with loading():
        module = importlib.import_module(sys.argv.pop(1))
    module.main()
