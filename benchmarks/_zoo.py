"""The models of benchmarks/models.py: real architectures of transformers and timm with random weights."""

from __future__ import annotations

import torch
from _compare import import_timm

# name: (configuration class, model class, changes to the configuration, batch, tokens)
TRANSFORMERS = {
    "bert": ("BertConfig", "BertForMaskedLM", {}, 16, 128),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}, 4, 512),
    "llama": (
        "LlamaConfig",
        "LlamaForCausalLM",
        dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
             num_attention_heads=16, num_key_value_heads=4, vocab_size=32000),
        4,
        512,
    ),
    "t5": ("T5Config", "T5ForConditionalGeneration", {}, 8, 128),
}
TIMM = ("resnet50", "vit_base_patch16_224", "convnext_tiny", "mobilenetv3_large_100", "efficientnet_b0")
NAMES = (*TRANSFORMERS, *TIMM)


def build(name: str, device: str, dtype: torch.dtype, small: bool) -> tuple[torch.nn.Module, tuple, dict]:
    """(model in eval mode, positional arguments, keyword arguments); ``small`` cuts batch and length to what two CPU
    cores can do."""
    torch.manual_seed(0)
    if name not in TRANSFORMERS:
        model = import_timm().create_model(name, pretrained=False)
        images = torch.randn(2 if small else 64, 3, 224, 224, device=device, dtype=dtype)
        return model.to(device=device, dtype=dtype).eval(), (images,), {}
    import transformers

    config_class, model_class, changes, batch, tokens = TRANSFORMERS[name]
    if small:
        batch, tokens = max(1, batch // 8), min(tokens, 64)
    config = getattr(transformers, config_class)(**changes)
    model = getattr(transformers, model_class)(config).to(device=device, dtype=dtype).eval()
    ids = torch.randint(0, 1000, (batch, tokens), device=device)
    kwargs = {"input_ids": ids}
    if name == "t5":
        kwargs["decoder_input_ids"] = ids
    if name != "bert":
        kwargs["use_cache"] = False
    return model, (), kwargs
