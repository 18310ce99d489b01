"""Chooses how deep each round verifies. Pure Python: nothing here imports MLX."""
