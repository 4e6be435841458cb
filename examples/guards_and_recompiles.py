"""What makes jit compile again: guards, and the log that names the one that failed.

An entry is valid while the facts hold that were used to make it. Each call checks them; when one does not hold, the
function is captured again for the new facts, and the old entry stays for the old ones.

Run: python examples/guards_and_recompiles.py
"""

import torch

import jit

SCALE = 2.0


@jit.compile
def scaled(x, power):
    return (x * SCALE) ** power


def call(title, x, power):
    before = jit.compile_count()
    out = scaled(x, power)
    torch.testing.assert_close(out, scaled.__wrapped__(x, power))
    made = jit.compile_count() - before
    print(f"{title}: {'compiled' if made else 'served by an existing entry'}", flush=True)


def main():
    global SCALE
    # The same as starting with JIT_LOGS=guards,recompiles
    jit.logs.enable("guards,recompiles")
    x = torch.randn(8, 16)
    call("first call", x, 2)
    call("other values, same facts", torch.randn(8, 16), 2)
    call("another constant", x, 3)
    call("another dtype", x.double(), 2)
    call("another size (captured again, now with a symbolic size)", torch.randn(9, 16), 2)
    call("a third size", torch.randn(10, 16), 2)
    SCALE = 3.0
    call("a global changed", x, 2)
    call("and is still what it was", x, 2)


if __name__ == "__main__":
    main()
