"""A real model: GPT-2 (or BERT, Llama, T5) from transformers with random weights, in eager, under torch.compile and
under jit.

Run: python examples/transformer.py [--model gpt2|bert|llama|t5] [--batch N] [--length N]
On a GPU the default is bfloat16, 4 sequences of 512 tokens; on a CPU it is float32, one sequence of 64.
"""

import sys

import torch

from _compare import TOLERANCE, arguments, compare, default_dtype, device, report


def build(name: str):
    """(model, extra arguments of its forward) of the usual base size; Llama is reduced to 8 layers of width 1024."""
    import transformers as hf

    if name == "bert":
        return hf.BertForMaskedLM(hf.BertConfig()), {}
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config()), {"use_cache": False}
    if name == "llama":
        config = hf.LlamaConfig(hidden_size=1024, intermediate_size=2816,
                                num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)
        return hf.LlamaForCausalLM(config), {"use_cache": False}
    return hf.T5ForConditionalGeneration(hf.T5Config()), {"use_cache": False}


def main():
    gpu = device() == "cuda"
    parser = arguments(__doc__)
    parser.add_argument("--model", default="gpt2", choices=["gpt2", "bert", "llama", "t5"])
    parser.add_argument("--batch", type=int, default=4 if gpu else 1)
    parser.add_argument("--length", type=int, default=512 if gpu else 64, help="tokens in a sequence")
    options = parser.parse_args()

    torch.manual_seed(0)
    dtype = default_dtype()
    model, extra = build(options.model)
    model = model.to(device=device(), dtype=dtype).eval()
    ids = torch.randint(0, 1000, (options.batch, options.length), device=device())
    if options.model == "t5":
        extra["decoder_input_ids"] = ids
    rows = compare(model, input_ids=ids, seconds=options.seconds, compilers=options.compilers, **extra)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    title = (
        f"{options.model}, {millions:.0f} M parameters, {options.batch} x {options.length} tokens, {str(dtype)[6:]} on "
        f"{device()}, inference")
    sys.exit(not report(title, rows, TOLERANCE[dtype]))


if __name__ == "__main__":
    main()
