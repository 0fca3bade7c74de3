"""python -m tasks.sites DIR: write the sites' tasks into DIR."""

import sys
from pathlib import Path

from tasks.sites import generate

if len(sys.argv) != 2:
    sys.exit("usage: python -m tasks.sites DIR")
try:
    generate(Path(sys.argv[1]))
except OSError as error:
    sys.exit(f"{error.filename}: {error.strerror}; name a new folder")
