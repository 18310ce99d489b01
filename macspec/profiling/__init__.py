"""Measures what verification costs on this machine, keeps it, and notices when it no longer fits."""

# Importing the models package first lets it load a fast BLAS before MLX.
import macspec_models as _macspec_models  # noqa: F401 (imported for its effect)
