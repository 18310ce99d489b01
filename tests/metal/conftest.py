"""Makes the executor package importable for every test below this folder."""

import sys
from pathlib import Path

import macspec  # noqa: F401  loads the fast BLAS before any test imports MLX

sys.path.insert(0, str(Path(__file__).parent))
