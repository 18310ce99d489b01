"""Measures what verification costs on this machine, keeps it, and notices when it no longer fits."""
