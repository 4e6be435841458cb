"""A real model: ResNet-50 (or any model of timm) with random weights, in eager, under torch.compile and under jit.

Run: python examples/vision.py [--model resnet50] [--batch N]
On a GPU the default is bfloat16 and 64 images; on a CPU it is float32 and 2.
"""

import argparse
import sys

import torch

from _compare import TOLERANCE, compare, default_dtype, device, import_timm, report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="resnet50", help="a name known to timm, such as vit_base_patch16_224 or convnext_tiny")
    parser.add_argument("--batch", type=int, default=64 if device() == "cuda" else 2)
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of each compiler")
    a = parser.parse_args()

    timm = import_timm()
    torch.manual_seed(0)
    dtype = default_dtype()
    model = timm.create_model(a.model, pretrained=False).to(device=device(), dtype=dtype).eval()
    images = torch.randn(a.batch, 3, 224, 224, device=device(), dtype=dtype)
    rows = compare(model, images, seconds=a.seconds)
    title = f"{a.model}, {a.batch} images, {str(dtype)[6:]} on {device()}, inference"
    sys.exit(not report(title, rows, TOLERANCE[dtype]))


if __name__ == "__main__":
    main()
