"""Every operator of PyTorch's OpInfo database on every sample: do results share memory, identity and history with the
arguments as in eager?

``python -m tests.sharing`` runs the whole database; ``programs.py`` says what is compared.
"""
