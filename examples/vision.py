"""A real model: ResNet-50 (or any model of timm) with random weights, in eager, under torch.compile and under jit.

Run: python examples/vision.py [--model resnet50] [--batch N]
On a GPU the default is bfloat16 and 64 images; on a CPU it is float32 and 2.
"""

import sys

import torch

from _compare import TOLERANCE, arguments, compare, default_dtype, device, import_timm, report


def main():
    parser = arguments(__doc__)
    parser.add_argument("--model", default="resnet50",
                        help="a name known to timm, such as vit_base_patch16_224 or convnext_tiny")
    parser.add_argument("--batch", type=int, default=64 if device() == "cuda" else 2)
    options = parser.parse_args()

    timm = import_timm()
    torch.manual_seed(0)
    dtype = default_dtype()
    model = timm.create_model(options.model, pretrained=False).to(device=device(), dtype=dtype).eval()
    images = torch.randn(options.batch, 3, 224, 224, device=device(), dtype=dtype)
    rows = compare(model, images, seconds=options.seconds, compilers=options.compilers)
    title = f"{options.model}, {options.batch} images, {str(dtype)[6:]} on {device()}, inference"
    sys.exit(not report(title, rows, TOLERANCE[dtype]))


if __name__ == "__main__":
    main()
