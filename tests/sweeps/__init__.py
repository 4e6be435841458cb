"""Sweeps over PyTorch's own database of operators and sample inputs, each a script: ``python -m tests.sweeps.layouts
--help``."""
