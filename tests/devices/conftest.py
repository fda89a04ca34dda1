"""Put the helper modules of this folder (pretend.py, runs.py) on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
