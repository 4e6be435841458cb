"""Libraries that take a model apart, wrap it or call other methods than its forward, with models that jit compiles; a
test is skipped where its library is not there."""

import copy
import logging

import pytest
import torch
from torch import nn

import jit


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def compilations(run):
    before = jit.compile_count()
    run()
    return jit.compile_count() - before


@pytest.mark.parametrize("way", [jit.compile, jit.compile_in_place])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(precision, way):
    accelerate = pytest.importorskip("accelerate")
    state = pytest.importorskip("accelerate.state")
    utils = pytest.importorskip("accelerate.utils")
    try:
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision)
        module, x = net(), torch.randn(3, 8)
        plain = accelerator.prepare(copy.deepcopy(module))
        fast = way(module)
        optimizer = torch.optim.AdamW(fast.parameters())
        prepared, optimizer = accelerator.prepare(fast, optimizer)
        out, expected = prepared(x), plain(x)
        assert out.dtype == expected.dtype
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        accelerator.backward(out.float().sum()), accelerator.backward(expected.float().sum())
        for a, b in zip(prepared.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=2e-2, atol=2e-2)
        optimizer.step()
        unwrapped = accelerator.unwrap_model(prepared)
        assert isinstance(unwrapped, nn.Sequential) and getattr(unwrapped, "_orig_mod", unwrapped) is module
        assert list(accelerator.get_state_dict(prepared)) == list(module.state_dict())
        taken = utils.extract_model_from_parallel(prepared, keep_fp32_wrapper=False)
        torch.testing.assert_close(taken(x).float(), module(x).float(), rtol=2e-2, atol=2e-2)
        accelerator.free_memory()
    finally:
        state.AcceleratorState._reset_state(True)


@pytest.mark.parametrize("way", [jit.compile, jit.compile_in_place])
def test_adapters_that_are_swapped(way):
    peft = pytest.importorskip("peft")
    config = dict(target_modules=["0", "2"], r=2, init_lora_weights=False)
    model = peft.get_peft_model(net(), peft.LoraConfig(**config))
    model.add_adapter("other", peft.LoraConfig(**config))
    plain, x = copy.deepcopy(model), torch.randn(3, 8)
    fast = way(model)

    def run():
        torch.testing.assert_close(fast(x), plain(x))

    counts = []
    for k in range(6):
        for one in (fast, plain):
            one.set_adapter(("default", "other")[k % 2])
        counts.append(compilations(run))
    assert sum(counts) == 2 and counts[2:] == [0, 0, 0, 0]
    with fast.disable_adapter(), plain.disable_adapter():
        run()
    run()
    for one in (fast, plain):
        one.merge_adapter()
    run()
    for one in (fast, plain):
        one.unmerge_adapter()
    fast(x).sum().backward(), plain(x).sum().backward()
    grads = [{n: p.grad for n, p in one.named_parameters() if p.grad is not None} for one in (fast, plain)]
    torch.testing.assert_close(*grads)
    assert grads[0] and len(peft.get_peft_model_state_dict(fast)) == 4
    torch.testing.assert_close(fast.merge_and_unload()(x), plain.merge_and_unload()(x))


def test_lightning():
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seen = set()

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            seen.add(("training", jit.is_compiling()))
            loss = ((self(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            seen.add(("validation", jit.is_compiling()))
            self.log("error", ((self(batch[0]) - batch[1]) ** 2).mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randn(24, 8))
    loader, results = torch.utils.data.DataLoader(data, 8), []
    for way in (lambda m: m, jit.compile, jit.compile_in_place):
        seen.clear()
        model = Model()
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False)
        trainer.fit(way(model), loader, loader)
        assert seen == {(name, way is jit.compile) for name in ("training", "validation")}
        results.append(([p.detach() for p in model.parameters()], trainer.callback_metrics))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-5)


def test_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    plain = torchmetrics.classification.MulticlassAccuracy(num_classes=3)
    fast = jit.compile(copy.deepcopy(plain))
    for _ in range(3):
        scores, wanted = torch.randn(10, 3), torch.randint(0, 3, (10,))
        torch.testing.assert_close(fast(scores, wanted), plain(scores, wanted))
    torch.testing.assert_close(fast.compute(), plain.compute())
    fast.reset()
    assert isinstance(fast, torchmetrics.Metric)


def test_einops():
    einops = pytest.importorskip("einops")
    layers = pytest.importorskip("einops.layers.torch")

    def fn(x):
        y = einops.rearrange(x, "a (b c) -> c b a", c=2)
        return einops.reduce(y, "c b a -> b a", "mean"), einops.einsum(y, y, "c b a, c b d -> a d")

    x = torch.randn(3, 8)
    fn(x)  # it finds out which library x is from
    torch.testing.assert_close(jit.compile(fn, fullgraph=True)(x), fn(x))
    layer = layers.Rearrange("a (b c) -> a c b", b=2)
    torch.testing.assert_close(jit.compile(layer, fullgraph=True)(x), layer(x))


def test_tensordict():
    tensordict = pytest.importorskip("tensordict")
    nodes = pytest.importorskip("tensordict.nn")
    module = nodes.TensorDictModule(net(), in_keys=["x"], out_keys=["y"])
    x = torch.randn(3, 8)
    fast = jit.compile(module)
    for _ in range(2):
        torch.testing.assert_close(fast(tensordict.TensorDict({"x": x}, [3]))["y"], module.module(x))
