"""Faults as users of a compiler meet them, one in each program of ``tests/planted``: what is seen names the cause, the
line and the cure, and nothing of it is seen any more where the cure is applied (each program does so when it is given
an argument). The line that has to be named is marked ``here`` in the program."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from program_server import Server

FOLDER = Path(__file__).resolve().parent / "planted"
PROGRAMS = sorted(FOLDER.glob("*.py"))


class Seen(NamedTuple):
    """What is seen of a fault.

    ``cause``: a text that is there with the fault, and not without; ``cure``: words that say what to do; ``logs``: the
    channels that have to be switched on for it, as the documentation says.
    """

    cause: str
    cure: tuple[str, ...] = ()
    logs: str = ""


BREAKS, AGAIN = "graph_breaks", "recompiles"
SEEN = {
    "01_wrong_pass": Seen("the pass 'replacement'", ("changes what the graph computes",)),
    "02_wrong_fake_kernel": Seen("planted::square returned Half where Float was predicted",
                                 ("register_fake", "opcheck")),
    "03_operator_without_fake": Seen("planted.doubled, an operator that is not PyTorch's own, has no fake kernel",
                                     ("torch.library.register_fake",), BREAKS),
    "04_break_in_library": Seen("json/encoder.py:", ("called from", "outside the compiled function"), BREAKS),
    "05_break_in_each_round": Seen("the program sleeps", ("sleep before or after the compiled function",), BREAKS),
    "06_changing_float": Seen("rate: expected 1.0, found 0.9", ("nothing needs to be done: rate is a number",), AGAIN),
    "07_changing_text": Seen("name: expected 'step 0', found 'step 1'", ("keep the values of name few",), AGAIN),
    "08_growing_list": Seen("the length of this list is different at every call", ("pass what is needed of it",),
                            BREAKS),
    "09_changing_global": Seen("temperature: expected 1, found 2",
                               ("nothing needs to be done: temperature is a number",), AGAIN),
    "10_counter_attribute": Seen("(i0 = self.calls)", ("Warmup.forward", "make it a tensor with torch.tensor"), AGAIN),
    "11_new_lambda": Seen("was compiled 8 times and runs in eager", ("fn: expected <lambda>", "make the object once")),
    "12_marked_static": Seen("was compiled 8 times and runs in eager", ("size of dim 0", "leave out the mark_static",
                                                                         "jit.mark_dynamic")),
    "13_changing_keys": Seen("was compiled 8 times and runs in eager", ("keep the keys of parts the same",)),
    "14_not_fused": Seen("sort: PyTorch's, since there is no kernel of ours for it", ("2 kernels",)),
    "15_data_branch": Seen("a branch depends on the values of a tensor", ("(append)", "torch.where"), BREAKS),
    "16_item_in_loop": Seen("a tensor's value is read by Python", ("torch.where",), BREAKS),
    "17_print_inside": Seen("pprint.py:", ("called from", "outside the compiled function"), BREAKS),
    "18_inplace_on_leaf": Seen("a leaf Variable that requires grad is being used in an in-place operation"),
    "19_disabled_inside": Seen("which is disabled: it logs to a server", ("take jit.disable off it",), BREAKS),
    "20_wrong_dtype": Seen("to have the same dtype, but got: float != long"),
    "21_raises_in_backward": Seen("RuntimeError: no gradient for a number"),
    "22_data_dependent_size": Seen("the size of the result depends on the data",
                                   ("use torch.where(mask, x, 0)", "(the value comes from line 16)"), BREAKS),
    "23_other_random_numbers": Seen("kernels draw other random numbers than eager", ("fallback_random = True",)),
    "24_half_rounding": Seen("values are not eager's to the last bit", ("match_eager_rounding = True",)),
    "25_memory_for_backward": Seen("704.0 KiB of them kept for the backward",
                                   ("the largest first: 512.0 KiB of sort (4 tensors of int64) at 25_memory",)),
    "26_slow_first_call": Seen("600 operations", ("Where the time of compiling went", "capture")),
    "27_backend_raises": Seen("the backend 'backend'", ("KeyError", "no rule for tanh", "runs in eager",
                                                        "JIT_STRICT=1")),
    "28_backend_returns_none": Seen("the backend 'backend'", ("returned NoneType; it has to return a function",)),
    "29_backend_wrong_results": Seen("the backend 'backend'", ("2 results came from it, and the graph has 1",)),
    "30_invalid_pass": Seen("PassError: in the pass 'cut'", ("shape, dtype and device have to be the same",)),
    "31_misspelt_mode": Seen("mode='reduce_overhead'", ("did you mean 'reduce-overhead'?",)),
    "32_unknown_option": Seen("no option 'cache_limits'", ("did you mean 'cache_limit'?",)),
    "33_unknown_backend": Seen("backend='inductor'", ("without backend= kernels of ours are made",)),
    "34_fullgraph_break": Seen("Unsupported: the program sleeps", ("sleep before or after the compiled function",)),
    "35_no_compiler": Seen("no C++ compiler: 'g++' is not on PATH", ("install g++ 11 or newer",)),
    "36_broken_compiler": Seen("the variable CXX is '/bin/false'", ("unset it",)),
    "37_unwritable_cache": Seen("the cache folder /proc/jit cannot be used", ("Set JIT_CACHE_DIR",
                                                                              "compiles it again")),
    "38_cache_is_a_file": Seen("the cache folder /dev/full cannot be used", ("Set JIT_CACHE_DIR", "compiles it again")),
    "39_unknown_variable": Seen("JIT_CACHE_LIMITS is not read", ("did you mean 'JIT_CACHE_LIMIT'?",)),
    "40_bad_variable": Seen("JIT_CACHE_LIMIT='many'", ("expected a whole number (int), such as 8",)),
    "41_unknown_channel": Seen("JIT_LOGS: no log channel 'recompile'", ("did you mean 'recompiles'?",)),
    "42_untested_torch": Seen("torch 3.7.0 was not tested", ("JIT_UNTESTED=1", "run in eager")),
    "43_new_object_each_call": Seen("settings.scale: expected", ("make the object once",), AGAIN),
    "44_file_of_another_machine": Seen("PyTorch: 2.11.0 there", ("Save it again here", "recompile=True")),
    "45_damaged_cache": Seen("removed, since it was damaged", ("is compiled again when it is needed",)),
    "46_full_disk": Seen("No space left on device", ("JIT_CACHE_DIR", "space left")),
    "47_unsupported_python": Seen("is not supported", ("supported: CPython 3.11 to",)),
}
NO_LINE = ("23_other_random_numbers", "24_half_rounding", "45_damaged_cache")  # it is about no single line


class Servers:
    """The processes that run the programs, started when they are needed."""

    def __init__(self, folder):
        self.folder, self.running = folder, {}

    def run(self, program, *arguments, logs=""):
        """What is seen of a program, and its exit status."""
        kind = () if "E402" in program.read_text() else ("jit",)
        if kind not in self.running:
            self.running[kind] = Server(self.folder, *kind)
        done = self.running[kind].run(program, *arguments, logs=logs, together=True, seconds=120)
        return done.stdout, done.returncode

    def stop(self):
        for server in self.running.values():
            server.stop()


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    made = Servers(tmp_path_factory.mktemp("planted"))
    yield made
    made.stop()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.stem)
def test_the_cause_the_line_and_the_cure_are_named(program, servers):
    wanted = SEEN[program.stem]
    lines = [f"{program.name}:{number}" for number, line in enumerate(program.read_text().splitlines(), 1)
             if line.endswith("# here")]
    assert lines or program.stem in NO_LINE
    text, _ = servers.run(program, logs=wanted.logs)
    plain = " ".join(re.sub(r"\[jit:\w+\]", " ", text).split())
    # A traceback's own way of naming a line.
    named = re.sub(r'File "([^"]+)", line (\d+)', r"\1:\2", plain)
    for part in (wanted.cause, *wanted.cure):
        assert part in plain, text
    for line in lines:
        assert re.search(rf"{re.escape(line)}\b", named), text
    cured, status = servers.run(program, "cured", logs=wanted.logs)
    assert status == 0 and wanted.cause not in " ".join(cured.split()), cured


def test_each_program_is_in_the_table():
    """The table of the folder has a row for each program, with what the program says of itself."""
    rows = dict(re.findall(r"^\| `(\w+)\.py` \| ([^|]+) \|", (FOLDER / "README.md").read_text(), re.M))
    said = {p.stem: ast.get_docstring(ast.parse(p.read_text())) for p in PROGRAMS}
    assert rows == said and sorted(SEEN) == sorted(said)
