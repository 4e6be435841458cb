"""A first function: compile it, check it against eager, see what it became.

Run: python examples/quickstart.py
"""

import torch

import jit


@jit.compile
def gelu_of_sum(x, y):
    z = x + y
    return 0.5 * z * (1 + torch.tanh(0.79788456 * (z + 0.044715 * z**3)))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(1024, 1024, device=device), torch.randn(1024, 1024, device=device)

    # The first call captures the function by its bytecode, compiles one fused kernel and runs it.
    out = gelu_of_sum(x, y)

    # The original function stays reachable, and is the truth to compare with.
    expected = gelu_of_sum.__wrapped__(x, y)
    torch.testing.assert_close(out, expected)
    print(f"same as eager: largest difference {float((out - expected).abs().max()):.1e}")

    # Later calls check guards in native code and run the kernel: nothing is compiled again.
    compiled = jit.compile_count()
    gelu_of_sum(x, y)
    assert jit.compile_count() == compiled
    print(f"graphs compiled: {compiled}")

    # What was captured: the graph as Python, and the source text of every kernel.
    explanation = jit.explain(gelu_of_sum.__wrapped__)(x, y)
    print(explanation)
    print("--- kernel")
    print("\n".join(explanation.kernels))


if __name__ == "__main__":
    main()
