"""GPU kernels: loop kernels become Triton text (``emit``), block sizes are chosen (``heuristics``), cubins are built
(``compile``)."""
