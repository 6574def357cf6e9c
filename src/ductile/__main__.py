"""`python -m ductile` is `ductile`."""

from __future__ import annotations

import sys

from ductile.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
