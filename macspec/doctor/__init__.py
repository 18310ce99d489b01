"""``macspec doctor``: explains the machine, and says what to do about what stands in the way. No network, no model."""

from macspec.doctor.command import add_arguments, run

__all__ = ["add_arguments", "run"]
