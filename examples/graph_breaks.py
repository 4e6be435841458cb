"""What happens at a step that cannot be captured, and how to find and remove it.

The results are eager's in any case. The log names the file, the line, the reason and what to do; fullgraph=True turns
the break into an error.

Run: python examples/graph_breaks.py
"""

import torch

import jit


def data_dependent(x):
    y = torch.sin(x)
    # Which number is used depends on values inside a tensor, which are not known while capturing.
    scale = 2
    if y.sum() > 0:
        scale = 3
    return y * scale


def without_the_break(x):
    y = torch.sin(x)
    # Both ways give a tensor of the same type: the branch is a step of the graph.
    if y.sum() > 0:
        y = y * 3
    else:
        y = y * 2
    return y


def main():
    x = torch.randn(64)

    # The same as starting with JIT_LOGS=graph_breaks
    jit.logs.enable("graph_breaks")
    out = jit.compile(data_dependent)(x)
    torch.testing.assert_close(out, data_dependent(x))
    jit.logs.enable("")

    print(jit.explain(data_dependent)(x))

    try:
        jit.compile(data_dependent, fullgraph=True)(x)
    except jit.errors.Unsupported as error:
        print(f"fullgraph=True says:\n{error}")
    else:
        raise SystemExit("fullgraph=True did not object to a branch on tensor values")

    whole = jit.compile(without_the_break, fullgraph=True)
    torch.testing.assert_close(whole(x), data_dependent(x))
    print("where both ways give tensors: one graph")


if __name__ == "__main__":
    main()
