"""CPython: bytecode, symbolic execution, guards, effects and rewriting."""
