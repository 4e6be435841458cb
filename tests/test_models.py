"""Whole models of transformers and timm: one graph, eager's results, and none of the model's own Python on a later
call."""

import sys

import pytest
import torch

import jit
from examples import _compare  # noqa: F401

SMALL_CONFIGS = {
    "bert": ("BertConfig", "BertForMaskedLM",
             dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=1000)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(n_layer=2, n_embd=64, n_head=4, vocab_size=1000)),
    "llama": ("LlamaConfig", "LlamaForCausalLM", dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                                      num_attention_heads=4, num_key_value_heads=2, vocab_size=1000)),
    "t5": ("T5Config", "T5ForConditionalGeneration",
           dict(num_layers=2, d_model=64, d_ff=128, num_heads=4, d_kv=16, vocab_size=1000)),
}
VISION = ("resnet50", "vit_base_patch16_224", "convnext_tiny")


def build(name):
    """(module in eval mode, positional arguments, keyword arguments)."""
    torch.manual_seed(0)
    if name in SMALL_CONFIGS:
        transformers = pytest.importorskip("transformers")
        config_class, model_class, changes = SMALL_CONFIGS[name]
        config = getattr(transformers, config_class)(**changes)
        model = getattr(transformers, model_class)(config).eval()
        ids = torch.randint(0, 1000, (2, 16))
        kwargs = dict(input_ids=ids, decoder_input_ids=ids) if name == "t5" else dict(input_ids=ids, labels=ids)
        if name != "bert":
            kwargs["use_cache"] = False
        return model, (), kwargs
    try:
        timm = _compare.import_timm()
    except ImportError as error:
        pytest.skip(str(error))
    return timm.create_model(name, pretrained=False).eval(), (torch.randn(1, 3, 224, 224),), {}


def tensors(out):
    values = out.values() if hasattr(out, "values") and not isinstance(out, torch.Tensor) else [out]
    return [t for t in values if isinstance(t, torch.Tensor)]


def python_frames(call, files, rewritten):
    """The Python functions from these files that start during the call, but for the code that was put in their
    place."""
    entered = []

    def profile(frame, event, arg):
        if (event == "call" and frame.f_code not in rewritten
            and any(part in frame.f_code.co_filename for part in files)):
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("name", [*SMALL_CONFIGS, *VISION])
def test_inference(name):
    model, args, kwargs = build(name)
    with torch.no_grad():
        expected = model(*args, **kwargs)
        compiled = jit.compile(model, fullgraph=True)
        before = jit.compile_count()
        first = compiled(*args, **kwargs)
        assert jit.compile_count() == before + 1
        rewritten = [entry.target.__code__ for entry in type(compiled)._jit_dispatcher.entries]
        entered = python_frames(lambda: compiled(*args, **kwargs), ("/transformers/", "/timm/", "/torch/nn/"),
                                rewritten)
        second = compiled(*args, **kwargs)
        assert jit.compile_count() == before + 1
    assert entered == []
    assert type(first) is type(expected)
    if hasattr(expected, "keys"):
        assert list(first.keys()) == list(expected.keys())
    for want, one, two in zip(tensors(expected), tensors(first), tensors(second), strict=True):
        assert one.stride() == want.stride() and one.dtype == want.dtype
        for got in (one, two):
            assert (got.double() - want.double()).norm() <= 1e-4 * want.double().norm()
    assert isinstance(compiled, type(model)) and list(compiled.state_dict()) == list(model.state_dict())


def test_a_module_that_changes():
    """Parameters replaced or cast, and attributes written, are seen on the next call."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Dropout(0.5)).eval()
    compiled = jit.compile(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for change in (lambda: None, lambda: setattr(model[0], "weight", torch.nn.Parameter(torch.randn(4, 4))),
                       lambda: model[0].bias.fill_(2.0), lambda: setattr(model[1], "eps", 0.5), lambda: model.double(),
                       lambda: model.append(torch.nn.ReLU())):
            change()
            y = x.to(model[0].weight.dtype)
            torch.testing.assert_close(compiled(y), model(y))
