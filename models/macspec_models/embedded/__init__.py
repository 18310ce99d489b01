"""The pair that works without a network: SmolLM2-135M-Instruct and the drafter trained for it here."""

from __future__ import annotations

from pathlib import Path

from macspec_models.embedded.convert import target_folder

#: Name of the embedded pair wherever a model is asked for.
NAME = "smollm2-135m"


def drafter_folder() -> Path:
    """Folder of the embedded drafter, in the published DFlash layout."""
    return Path(__file__).parent / "drafter"


__all__ = ["NAME", "drafter_folder", "target_folder"]
