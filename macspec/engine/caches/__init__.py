"""Caches as transactions: what a verification pass added is kept or undone as a whole.

``TargetCache`` wraps the list of caches an mlx-lm model makes. ``supports_rollback`` says whether every one of them
can be undone, ``quantize_layers`` turns full attention caches into quantised ones before first use.
"""

from macspec.engine.caches.leaves import CacheStateError, quantize_layers
from macspec.engine.caches.target_cache import Checkpoint, TargetCache, supports_rollback
from macspec.engine.caches.window import WindowCache

__all__ = [
    "CacheStateError",
    "Checkpoint",
    "TargetCache",
    "WindowCache",
    "quantize_layers",
    "supports_rollback",
]
