"""Networks and checkpoints: targets, drafters, their files and their training."""

from macspec_models.blas import preload

#: Path of the BLAS that replaced MLX's own on Linux, or None.
BLAS = preload()
