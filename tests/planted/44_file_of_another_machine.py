"""A saved file was made by another version of PyTorch."""

import sys

import torch

import jit

CURED = len(sys.argv) > 1


import json
import os
import tempfile
import zipfile


@jit.compile
def program(x):
    return torch.tanh(x) * 2


print(program(torch.randn(4)).shape)
folder = tempfile.mkdtemp()
saved, moved = os.path.join(folder, "saved.jit"), os.path.join(folder, "moved.jit")
jit.save(program, saved)
with zipfile.ZipFile(saved) as old, zipfile.ZipFile(moved, "w") as new:
    for name in old.namelist():
        data = old.read(name)
        if name == "manifest.json":
            manifest = json.loads(data)
            manifest["here"]["PyTorch"] = "2.11.0"
            data = json.dumps(manifest)
        new.writestr(name, data)
print(jit.load(saved if CURED else moved).functions)  # here
