"""macspec: local LLM inference with DFlash drafting and truncated verification.

    import macspec

    engine = macspec.load()
    print(macspec.generate(engine, "Write a haiku about rain").text)

Importing the package imports no MLX; that happens when a model is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from macspec.errors import MacspecError
from macspec.request import GenerationRequest, Grammar, SamplingParams

if TYPE_CHECKING:
    from macspec.api import Answer, answers, generate, load, stream

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "GenerationRequest",
    "Grammar",
    "MacspecError",
    "SamplingParams",
    "__version__",
    "answers",
    "generate",
    "load",
    "stream",
]


def __getattr__(name: str) -> Any:
    if name in ("Answer", "answers", "generate", "load", "stream"):
        return getattr(importlib.import_module("macspec.api"), name)
    raise AttributeError(f"module 'macspec' has no attribute {name!r}")
