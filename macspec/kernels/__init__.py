"""Metal kernels for the verification pass of 1 to 16 rows, and the proof that decides whether they are used.

One ``.metal`` file per kernel, its contract above the source. `source` reads them, `calls` launches them, `reference`
holds the same computations in MLX's ops. `library` decides, from `verdicts` reached by `probe` on `cases`; `modules`
puts them into a model. None of them was ever run on a Mac by its authors: they are executed and checked on a CPU by the
executor in ``tests/metal``, and trusted on a device only after they proved themselves there.
"""

# Importing the models package first lets it load a fast BLAS before MLX.
import macspec_models as _macspec_models  # noqa: F401 (imported for its effect)
