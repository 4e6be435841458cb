"""Triton text -> cubin, with nothing but triton imported. As a script it is a worker: jobs on stdin, results on stdout,
until stdin closes.

It runs the stages of Triton's compiler itself: ``triton.compile`` would first hash the whole triton package (0.9 s in
every new process) and keep a second cache beside ours. What is left is some 75 ms per kernel, half of it ptxas, after
0.1 s for importing triton.
"""

import contextlib
import linecache
import os
import pickle
import re
import signal
import struct
import sys
import threading
from typing import Any

_count = 0
_lock = threading.Lock()
# Triton's front end reads syntax trees, and CPython 3.11 keeps one recursion counter for all threads that make them.
_front_end = threading.Lock()


def load_function(text: str, function: str) -> tuple[object, str]:
    """The Triton function of a module's text. The text is kept in ``linecache``, where Triton looks for sources."""
    global _count
    with _lock:
        _count += 1
        name = f"<jit kernel {_count}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = {"__name__": "jit_kernel", "__file__": name}
    exec(compile(text, name, "exec"), module)
    return module[function], name


def triton() -> tuple:
    """The parts of Triton's compiler: (MLIR, backends, compiler). Imported when asked for: the package is optional."""
    # Late, and the whole before its parts: another thread may be at it, and a part's import does not wait for that.
    import triton  # noqa: F401
    from triton._C.libtriton import ir
    from triton.backends import compiler as backends
    from triton.compiler import compiler

    return ir, backends, compiler


def early(ptx: str) -> str:
    """A kernel's text that may be launched before the kernel in front of it has ended: it waits for the memory of all
    before it, and then lets the one behind it be launched. So launches take place while other kernels run, and what a
    kernel reads before it waits, only the kernel right in front of it could still write."""
    at = _BODY.search(ptx)
    if at is None or len(_ENTRY.findall(ptx)) != 1:
        raise RuntimeError("the PTX of a kernel is not in the form that is known")
    return f"{ptx[:at.end()]}\t{WAIT}\n\tgriddepcontrol.launch_dependents;\n{ptx[at.end():]}"


PARAMETERS = 4096  # bytes that every driver takes for a launch
WAIT = "griddepcontrol.wait;"
_ENTRY = re.compile(r"\.entry\s")
_PARAMETERS = re.compile(r"\.visible \.entry (\w+)\(\n((?:[^)\n]*\n)*)\)")
_BODY = re.compile(r"\.entry[^{]*\{\n(?:\s*(?:\.reg|\.local|\.shared|//)[^\n]*\n|[ \t]*\n)*")
CAPABILITY = 90  # the least of GPUs that have this


def places(arguments: int, wanted: int) -> tuple[int, int, int]:
    """For ``wanted`` launches that are joined, of a kernel with so many arguments: how many of them, at most, the
    parameters of one launch take, where in these the arguments begin, and how many bytes they have. First comes, for
    each launch, the number of the first of its programs, in a power of two of 32-bit words; then the arguments of one
    launch after the other, each in eight bytes."""
    best = 0, 0, 0
    words = 2
    while 4 * words + 8 * arguments <= PARAMETERS and best[0] < wanted:
        most = min(words, (PARAMETERS - 4 * words) // max(8 * arguments, 1))
        if most > best[0]:
            best = most, 4 * words, 4 * words + 8 * arguments * most
        words *= 2
    return best


def joined(ptx: str, arguments: int, wanted: int) -> str:
    """A kernel's text for launches that are joined (``places``): each program finds out by halving to which of them it
    belongs, and takes its arguments and its number in that one from there. The parameters lie in the constant cache,
    so this takes as long as a few instructions."""
    entry, at = _PARAMETERS.search(ptx), _BODY.search(ptx)
    count, start, size = places(arguments, wanted)
    if entry is None or at is None or len(_ENTRY.findall(ptx)) != 1 or count < 2:
        raise RuntimeError("the PTX of a kernel is not in the form that is known")
    name, body = entry[1], ptx[at.end():]
    table = f"{name}_jobs"
    lines = ["\t.reg .pred %joined_later;", "\t.reg .b32 %joined_<4>;", "\t.reg .b64 %joined_at_<3>;",
             "\tmov.u32 %joined_0, %ctaid.x;", f"\tmov.b64 %joined_at_0, {table};", "\tmov.b32 %joined_1, 0;"]
    step = start // 8
    while step:
        lines += [f"\tadd.u32 %joined_2, %joined_1, {step};", "\tmul.wide.u32 %joined_at_1, %joined_2, 4;",
                  "\tadd.u64 %joined_at_1, %joined_at_0, %joined_at_1;", "\tld.param.u32 %joined_3, [%joined_at_1];",
                  "\tsetp.ge.u32 %joined_later, %joined_0, %joined_3;",
                  "\tselp.b32 %joined_1, %joined_2, %joined_1, %joined_later;"]
        step //= 2
    lines += ["\tmul.wide.u32 %joined_at_1, %joined_1, 4;", "\tadd.u64 %joined_at_1, %joined_at_0, %joined_at_1;",
              "\tld.param.u32 %joined_3, [%joined_at_1];", "\tsub.u32 %joined_0, %joined_0, %joined_3;",
              f"\tmul.wide.u32 %joined_at_2, %joined_1, {8 * arguments};",
              "\tadd.u64 %joined_at_2, %joined_at_0, %joined_at_2;"]
    for k in range(arguments):
        body = body.replace(f"[{name}_param_{k}]", f"[%joined_at_2+{start + 8 * k}]")
    body = body.replace("%ctaid.x", "%joined_0")
    if f"{name}_param_" in body or "%ctaid" in body or "%nctaid" in body or "%gridid" in body:
        raise RuntimeError("the PTX of a kernel is not in the form that is known")
    head = ptx[:entry.start(2)] + f"\t.param .align 8 .b8 {table}[{size}]\n" + ptx[entry.end(2):at.end()]
    return head + "\n".join(lines) + "\n" + body


_PAIRS_ADDED = re.compile(r"add\.s16x2\s+(%\w+), (%\w+), (%\w+);")


def added_singly(ptx: str) -> str:
    """PTX with sums of two 16-bit integers at once taken apart. LLVM puts sums of small indices together so, and ptxas
    (12.8 to 13.0) then adds what belongs to the other number, where one of the two is not used: the sum of {anything,
    9} and {0, 1} was 9, and a window had a column too many."""
    return _PAIRS_ADDED.sub(
        r"{ .reg .b16 %pair_<4>; mov.b32 {%pair_0, %pair_1}, \2; mov.b32 {%pair_2, %pair_3}, \3; "
        r"add.s16 %pair_0, %pair_0, %pair_2; add.s16 %pair_1, %pair_1, %pair_3; mov.b32 \1, {%pair_0, %pair_1}; }", ptx)


def build(job: dict[str, Any]) -> dict[str, bytes | int | str]:
    """Compile one kernel.

    Args:
        job: dict with ``text``, ``function``, ``arguments`` (signature types), ``divisible`` (argument positions),
            ``capability`` (90 for sm_90), ``warps``, ``stages``, ``early`` (whether it is made ``early``), ``joined``
            (for how many launches it is made ``joined``), ``maxnreg`` (None for no limit), ``fused`` (products
            are not rounded before they are added) and ``scratch`` (bytes for each program that are provided).
    Returns:
        dict with ``cubin`` (bytes), ``function`` (symbol), ``warps``, ``shared`` (bytes), ``ptx`` (text, when the job
        asks with ``keep_ptx``).
    Raises: what Triton raises.
    """
    ir, backends, compiler = triton()
    fn, name = load_function(job["text"], job["function"])
    try:
        target = backends.GPUTarget("cuda", job["capability"], 32)
        backend = compiler.make_backend(target)
        # a*b+c keeps two roundings, as eager has it; operators and kernels that round once say so.
        options = backend.parse_options({"num_warps": job["warps"], "num_stages": max(1, job["stages"]),
                                         "maxnreg": job.get("maxnreg"), "enable_fp_fusion": job.get("fused", False)})
        signature = dict(zip(fn.arg_names, job["arguments"]))
        source = compiler.ASTSource(fn, signature, {}, {(i,): [["tt.divisibility", 16]] for i in job["divisible"]})
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        with _front_end:
            module = source.make_ir(target, options, backend.get_codegen_implementation(options),
                                    backend.get_module_map(), context)
        stages, metadata, ptx = {}, {"target": target, **options.__dict__}, None
        backend.add_stages(stages, options, backends.Language.TRITON)
        for stage, lower in stages.items():
            module = lower(module, metadata)
            if stage == "ptx":
                module = added_singly(module)
            if stage == "ptx" and job.get("joined"):
                module = joined(module, len(job["arguments"]), job["joined"])
            if stage == "ptx" and job.get("early"):
                module = early(module)
            if stage == "ptx" and job.get("keep_ptx"):
                ptx = module
    finally:
        linecache.cache.pop(name, None)
    if metadata.get("global_scratch_size", 0) > job.get("scratch", 0) or metadata.get("profile_scratch_size"):
        raise RuntimeError("the kernel wants scratch memory, which is not provided")
    result = {"cubin": bytes(module), "function": metadata["name"], "warps": metadata["num_warps"],
              "shared": metadata["shared"]}
    return {**result, "ptx": ptx} if ptx else result


def read_message(stream: object) -> str | dict[str, bytes | int | str] | None:
    """The next pickled object from a stream, with a length before it; None at its end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    data = stream.read(struct.unpack("<q", head)[0])
    return pickle.loads(data)


def write_message(stream: object, message: dict[str, Any]) -> None:
    data = pickle.dumps(message)
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


FIRST = {"function": "first", "arguments": ["*fp32", "i32"], "divisible": [0], "capability": CAPABILITY, "warps": 4,
         "stages": 1, "text": """\
import triton
import triton.language as tl


@triton.jit
def first(out, n):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(out + at, tl.load(out + at, mask=at < n) * 2, mask=at < n)
"""}


def warm_up() -> None:
    """Compile a small kernel, for what Triton, LLVM and ptxas do only once in a process: 0.1 s, for which the first
    job would wait otherwise."""
    with contextlib.suppress(Exception):  # whatever it is, the first job has it too, and tells
        build(FIRST)


def main() -> None:
    """Serve jobs. Whatever a library prints goes to stderr, so that stdout carries results alone. An interrupt from the
    keyboard is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if len(sys.argv) > 1:
        sys.path.append(sys.argv[1])
    triton()  # the slow part of starting
    write_message(sink, "ready")
    warm_up()
    while True:
        job = read_message(source)
        if job is None:
            return
        try:
            result = build(job)
        except BaseException as error:  # reported to the parent, which raises
            result = {"error": f"{type(error).__name__}: {error}"}
        write_message(sink, result)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        main()
