"""A small program, where the cost of a call decides: the softmax of a 100x100 matrix product.

torch.compile is slower than eager here, because what it does before its kernel starts takes longer than what fusion
saves. jit checks its guards and runs its plan in native code.

Run: python examples/matmul_softmax.py [--seconds 2]
"""

import sys

import torch

from _compare import arguments, compare, device, report


def matmul_softmax(a, b):
    return torch.nn.functional.softmax(torch.matmul(a, b), dim=1)


def main():
    options = arguments(__doc__).parse_args()
    torch.manual_seed(0)
    a, b = torch.rand(100, 100, device=device()), torch.rand(100, 100, device=device())
    rows = compare(matmul_softmax, a, b, seconds=options.seconds, compilers=options.compilers, warmup=50)
    sys.exit(not report(f"softmax(a @ b), 100x100, float32 on {device()}", rows))


if __name__ == "__main__":
    main()
