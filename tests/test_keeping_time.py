"""How much work keeping an entry on disk is, and reading it again: in proportion to the layers of a model. Lines of the
compiler that run are counted (``test_compile_time.lines_of``)."""

import sys
import time
from pathlib import Path

import jit
import torch
from jit.frame import dispatch, stored, traced_lines, writer
from jit.runtime import sources

sys.path.append(str(Path(__file__).resolve().parent))
from test_compile_time import lines_of  # noqa: E402

KEPT, READ = 12_000, 1_000  # lines for a layer


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.scale = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), 0.5

    def forward(self, x):
        return x + self.scale * self.linear(self.norm(x)).relu()


class Layers(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(n)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_an_entry_of_twice_the_layers_is_twice_the_work_to_keep(tmp_path, monkeypatch):
    """And to read again, in lines and in bytes."""
    monkeypatch.setattr(stored, "_off", [False])
    monkeypatch.setattr(writer, "QUIET_S", 60.0)
    # Lines are counted by a tracer, under which entries are not read from disk.
    monkeypatch.setattr(traced_lines, "wanted", lambda: False)
    monkeypatch.setattr(sources, "BEGAN", time.time() + 1e6)
    monkeypatch.setattr(sources, "_digests", {})
    found, x = [], torch.randn(2, 4)
    for n in (4, 8, 16, 32):  # the first for what is done once
        folder = tmp_path / str(n)
        with jit.config.patch(cache_dir=str(folder), entry_cache=True), torch.no_grad():
            module = Layers(n)
            want, got = module(x), jit.compile(module)(x)
            lines = lines_of(writer.finish)
            file, = [f for f in (folder / "entries").glob("*/*")]
            again, captures = jit.compile(Layers(n)), dispatch.captures_so_far()
            again.load_state_dict(module.state_dict())
            results = []
            read = lines_of(lambda: results.append(again(x)))
            assert dispatch.captures_so_far() == captures
            for result in (got, *results):
                torch.testing.assert_close(result, want)
            found.append((lines, read, file.stat().st_size))
    for few, some, many in zip(*found[1:]):
        assert many - some <= 2.3 * (some - few), found
    (few, fewer_read, _), (many, more_read, _) = found[1], found[3]
    assert (many - few) / 24 < KEPT and (more_read - fewer_read) / 24 < READ, found
