"""Errors about model files. Messages are sentences: which file, which tensor or field, what to do."""

from __future__ import annotations


class ModelError(Exception):
    """Base of this package's errors."""

    exit_code = 2
    http_status = 500
    code = "model_unusable"
    param: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ModelMissingError(ModelError):
    """No model of that name, no such folder, or nothing there and no network."""

    http_status = 404
    code = "model_not_found"


class CheckpointError(ModelError):
    """A checkpoint is damaged, incomplete, unsafe, of another kind, or made for another target."""


class DownloadError(ModelError):
    """A download failed; what was there before is unchanged."""

    exit_code = 1
