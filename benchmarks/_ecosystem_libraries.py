"""Rows of benchmarks/ecosystem.py: libraries that are built on PyTorch. Models are tiny and random; nothing is
downloaded."""

from __future__ import annotations

import functools

import torch
from _ecosystem_common import inferring, integers, learning, normal, row
from _ecosystem_patterns import small_net
from torch import nn
from torch.nn import functional as F

# --- graphs, equations, Gaussian processes, symmetry --------------------------------------------------------------


@functools.cache
def some_graph(device, i):
    """(features, edges) of a random graph."""
    n = 200 + 17 * i
    return normal(device, n, 16, seed=i), integers(device, n, 2, 5 * n, seed=i)


def _graph_net(make):
    def build(device, wrap):
        import torch_geometric.nn

        torch.manual_seed(0)
        first, second = make(torch_geometric.nn)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = first, second

            def forward(self, x, edges):
                return self.second(F.relu(self.first(x, edges)), edges)

        model = Net().to(device)
        program = wrap(model)
        return learning(model, lambda i: program(*some_graph(device, i)).square().mean())
    return build


row("torch_geometric: GCN", "torch_geometric")(_graph_net(lambda g: (g.GCNConv(16, 32), g.GCNConv(32, 8))))
row("torch_geometric: GAT", "torch_geometric")(
    _graph_net(lambda g: (g.GATConv(16, 8, heads=4), g.GATConv(32, 8, heads=1))))
row("torch_geometric: GraphSAGE", "torch_geometric")(_graph_net(lambda g: (g.SAGEConv(16, 32), g.SAGEConv(32, 8))))


@row("torch_geometric: GIN on batches of graphs", "torch_geometric")
def gin(device, wrap):
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, global_add_pool

    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GINConv(small_net("cpu", 16, 32, 32))
            self.head = nn.Linear(32, 4)

        def forward(self, data):
            x = self.conv(data.x, data.edge_index).relu()
            return self.head(global_add_pool(x, data.batch, data.num_graphs))

    model = Net().to(device)
    program = wrap(model)
    batches = [Batch.from_data_list([Data(normal(device, 10 + g + i, 16, seed=g),
                                          integers(device, 10 + g + i, 2, 30 + i, seed=g)) for g in range(8)])
               for i in range(12)]
    return learning(model, lambda i: program(batches[i]).square().mean())


def _equation(method, learns, **options):
    def build(device, wrap):
        from torchdiffeq import odeint

        net = small_net(device, 4, 32, 4)

        class Field(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, t, y):
                return self.net(y) * torch.cos(t)

        field, times = Field(), torch.linspace(0, 2, 8, device=device)
        program = wrap(lambda y: odeint(field, y, times, method=method, **options))
        if learns:
            return learning(field, lambda i: program(normal(device, 16 + i, 4, seed=i))[-1].square().mean())
        return inferring(lambda i: program(normal(device, 16 + i, 4, seed=i)))
    return build


row("torchdiffeq: dopri5, adaptive", "torchdiffeq")(_equation("dopri5", False))
row("torchdiffeq: dopri5, with gradients", "torchdiffeq")(_equation("dopri5", True))
row("torchdiffeq: rk4, with gradients", "torchdiffeq")(_equation("rk4", True))


@row("torchdiffeq: dopri5, only the field compiled", "torchdiffeq")
def only_the_field(device, wrap):
    from torchdiffeq import odeint

    field = wrap(small_net(device, 4, 32, 4))
    times = torch.linspace(0, 2, 8, device=device)
    return inferring(lambda i: odeint(lambda t, y: field(y), normal(device, 16 + i, 4, seed=i), times))


@row("gpytorch: training an exact GP", "gpytorch")
def exact_gp(device, wrap):
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = normal(device, 60, 2, dtype=torch.float64), normal(device, 60, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood).to(device).double()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    program = wrap(lambda x, y: -marginal(model(x), y))

    def run(i):
        x, y = (normal(device, 40 + i, *rest, dtype=torch.float64, seed=i) for rest in ((2,), ()))
        model.set_train_data(x, y, strict=False)
        optimizer.zero_grad()
        loss = program(x, y)
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        return loss, gradients

    return run


@row("gpytorch: predictions of an exact GP", "gpytorch")
def gp_predictions(device, wrap):
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood):
            super().__init__(x, y, likelihood)
            self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.MaternKernel()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x, y = normal(device, 60, 2, dtype=torch.float64), normal(device, 60, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    model = Model(x, y, likelihood).to(device).double().eval()
    likelihood.double().eval()

    def call(x):
        with gpytorch.settings.fast_pred_var(False):
            predicted = likelihood(model(x))
            return predicted.mean, predicted.variance

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 20 + i, 2, dtype=torch.float64, seed=i)))


@row("botorch: an acquisition function and its gradient", "botorch", "gpytorch")
def acquisition(device, wrap):
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = normal(device, 30, 3, dtype=torch.float64).sigmoid()
    y = (x * 3).sin().sum(-1, keepdim=True)
    model = SingleTaskGP(x, y).to(device).eval()
    improvement = LogExpectedImprovement(model, best_f=y.max())
    program = wrap(lambda x: improvement(x))

    def run(i):
        x = normal(device, 5 + i, 1, 3, dtype=torch.float64, seed=i).sigmoid().requires_grad_()
        value = program(x)
        gradient, = torch.autograd.grad(value.sum(), x)
        return value, gradient

    return run


@row("e3nn: an equivariant tensor product", "e3nn")
def tensor_product(device, wrap):
    from e3nn import o3

    torch.manual_seed(0)
    inputs, outputs = o3.Irreps("8x0e + 4x1o"), o3.Irreps("8x0e + 4x1o + 2x2e")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct(inputs, o3.Irreps("0e + 1o + 2e"), outputs)
            self.linear = o3.Linear(outputs, o3.Irreps("4x0e"))

        def forward(self, x, positions):
            edges = o3.spherical_harmonics([0, 1, 2], positions, True, normalization="component")
            return self.linear(self.product(x, edges))

    model = Net().to(device)
    program = wrap(model)
    return learning(model, lambda i: program(normal(device, 30 + i, inputs.dim, seed=i),
                                             normal(device, 30 + i, 3, seed=i + 50)).square().mean())


# --- trainers -----------------------------------------------------------------------------------------------------

def _lightning_module(device):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = small_net("cpu")

        def training_step(self, batch, index):
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)

    return Module().to(device)


@row("lightning: training_step", "lightning")
def training_step(device, wrap):
    module = _lightning_module(device)
    program = wrap(module)
    return learning(module, lambda i: program.training_step((normal(device, 32 + i, 32, seed=i),
                                                             integers(device, 8, 32 + i, seed=i)), i))


@row("lightning: Trainer.fit", "lightning")
def fit(device, wrap):
    import logging

    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module = _lightning_module(device)
    program = wrap(module)
    data = torch.utils.data.TensorDataset(normal("cpu", 100, 32), integers("cpu", 8, 100))

    def run(i):
        trainer = lightning.Trainer(max_epochs=1, limit_train_batches=6, accelerator=device.replace("cuda", "gpu"),
                                    devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False)
        trainer.fit(program, torch.utils.data.DataLoader(data, batch_size=12 + i))
        module.to(device)
        return [p.detach() for p in module.parameters()]

    return run


@row("accelerate: a prepared model", "accelerate")
def accelerated(device, wrap):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu")
    net = small_net(device)
    model, optimizer = accelerator.prepare(wrap(net), torch.optim.AdamW(net.parameters(), 1e-3))

    def run(i):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(normal(device, 32 + i, 32, seed=i)), integers(device, 8, 32 + i, seed=i))
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss, [p.detach() for p in accelerator.unwrap_model(model).parameters()]

    return run


# --- transformers and around --------------------------------------------------------------------------------------

def small_llama(device):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=128, max_position_embeddings=128, eos_token_id=None,
                         bos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(config).to(device).eval()


@row("peft: LoRA, two adapters swapped", "peft", "transformers")
def lora(device, wrap):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, init_lora_weights=False)
    model = get_peft_model(small_llama(device), config)
    model.add_adapter("other", config)
    model.to(device)
    program = wrap(model)

    def run(i):
        model.set_adapter(("default", "other")[i % 2])
        for p in model.parameters():
            p.grad = None
        ids = integers(device, 128, 2, 16 + i, seed=i)
        loss = program(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss, [p.grad for p in model.parameters() if p.requires_grad]

    return run


def _generation(**options):
    def build(device, wrap):
        model = small_llama(device)
        model.generation_config.disable_compile = True  # or else the library calls torch.compile itself
        model.forward = wrap(model.forward)

        def run(i):
            ids = integers(device, 128, 2, 8 + i, seed=i)
            return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, **options)

        return inferring(run)
    return build


row("transformers: generate, a dynamic cache", "transformers")(_generation(do_sample=False))
row("transformers: generate, a static cache", "transformers")(
    _generation(do_sample=False, cache_implementation="static"))
row("transformers: generate, beams", "transformers")(_generation(do_sample=False, num_beams=3))


@row("transformers: fine-tuning a classifier", "transformers")
def classifier(device, wrap):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=200,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).to(device)
    program = wrap(model)

    def loss(i):
        ids = integers(device, 200, 4, 12 + i, seed=i)
        mask = (torch.arange(12 + i, device=device) < torch.tensor([[12 + i], [6], [9], [4]], device=device)).long()
        return program(input_ids=ids, attention_mask=mask, labels=integers(device, 2, 4, seed=i)).loss

    return learning(model, loss)


@row("sentence-transformers: pooling", "sentence_transformers", "transformers")
def pooling(device, wrap):
    from sentence_transformers.models import Normalize, Pooling
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                                 vocab_size=200)).to(device).eval()
    pool, norm = Pooling(64, pooling_mode="mean"), Normalize()

    def encode(ids, mask):
        tokens = model(input_ids=ids, attention_mask=mask).last_hidden_state
        return norm(pool({"token_embeddings": tokens, "attention_mask": mask}))["sentence_embedding"]

    program = wrap(encode)

    def run(i):
        ids = integers(device, 200, 4, 12 + i, seed=i)
        mask = (torch.arange(12 + i, device=device) < torch.tensor([[12 + i], [6], [9], [4]], device=device)).long()
        return program(ids, mask)

    return inferring(run)


@row("diffusers: a UNet denoises (DDIM)", "diffusers")
def unet(device, wrap):
    from diffusers import DDIMScheduler, UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(sample_size=16, in_channels=3, out_channels=3, block_out_channels=(32, 64), layers_per_block=1,
                        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                        up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8).to(device).eval()
    program = wrap(model)
    scheduler = DDIMScheduler(num_train_timesteps=100)

    def run(i):
        scheduler.set_timesteps(4, device=device)
        x = normal(device, 1 + i % 3, 3, 16, 16, seed=i)
        for t in scheduler.timesteps:
            x = scheduler.step(program(x, t).sample, t, x).prev_sample
        return x

    return inferring(run)


@row("diffusers: training a conditional UNet", "diffusers", random=True)
def conditional_unet(device, wrap):
    from diffusers import DDPMScheduler, UNet2DConditionModel

    torch.manual_seed(0)
    model = UNet2DConditionModel(sample_size=16, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
                                 cross_attention_dim=32, attention_head_dim=8,
                                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                                 up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")).to(device)
    scheduler = DDPMScheduler(num_train_timesteps=100)

    def step(x, text, t):
        noise = torch.randn_like(x)
        return F.mse_loss(model(scheduler.add_noise(x, noise, t), t, text).sample, noise)

    program = wrap(step)

    def loss(i):
        torch.manual_seed(i)
        n = 2 + i % 3
        return program(normal(device, n, 4, 16, 16, seed=i), normal(device, n, 5, 32, seed=i),
                       integers(device, 100, n, seed=i))

    return learning(model, loss)


# --- tools --------------------------------------------------------------------------------------------------------

@row("torchmetrics: functional", "torchmetrics")
def metrics_functional(device, wrap):
    from torchmetrics.functional import accuracy, f1_score, mean_squared_error

    def call(logits, labels):
        return (accuracy(logits, labels, "multiclass", num_classes=5), mean_squared_error(logits, logits.tanh()),
                f1_score(logits, labels, "multiclass", num_classes=5, average="macro"))

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 50 + i, 5, seed=i), integers(device, 5, 50 + i, seed=i)))


@row("torchmetrics: update and compute", "torchmetrics")
def metrics_modules(device, wrap):
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

    metrics = MetricCollection([MulticlassAccuracy(5), MulticlassConfusionMatrix(5)]).to(device)
    mean = MeanMetric().to(device)

    def step(logits, labels):
        metrics.update(logits, labels)
        mean.update(F.cross_entropy(logits, labels))
        return logits.argmax(-1)

    program = wrap(step)

    def run(i):
        out = program(normal(device, 50 + i, 5, seed=i), integers(device, 5, 50 + i, seed=i))
        return out, dict(metrics.compute()), mean.compute()

    return inferring(run)


@row("einops: patches and attention", "einops")
def einops_attention(device, wrap):
    from einops import einsum, rearrange, reduce, repeat
    from einops.layers.torch import Rearrange

    torch.manual_seed(0)
    patches = nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 96)).to(device)

    def call(images):
        x = patches(images)
        q, k, v = rearrange(x, "b n (three h d) -> three b h n d", three=3, h=4)
        weights = einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        out = rearrange(einsum(weights, v, "b h i j, b h j d -> b h i d"), "b h n d -> b n (h d)")
        return reduce(out, "b n d -> b d", "mean") + repeat(out[0, 0], "d -> b d", b=len(images))

    program = wrap(call)
    return learning(patches, lambda i: program(normal(device, 2 + i, 3, 16, 16, seed=i)).square().mean())


@row("tensordict: operations and modules", "tensordict")
def tensor_dicts(device, wrap):
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    first = TensorDictModule(small_net(device, 16, 32, 8), in_keys=["observation"], out_keys=["hidden"])
    second = TensorDictModule(small_net(device, 8, 32, 2, seed=1), in_keys=["hidden"], out_keys=["action"])
    model = TensorDictSequential(first, second)

    def call(observation, reward):
        data = TensorDict({"observation": observation, "next": {"reward": reward}}, batch_size=observation.shape[:1])
        data = model(data)
        data["scaled"] = data["action"] * data["next", "reward"]
        both = torch.stack([data, data.apply(lambda t: t * 2)], 0)
        return both["scaled"].sum(), data["action"]

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 16 + i, 16, seed=i), normal(device, 16 + i, 1, seed=i)))


@row("torchao: int8 weights", "torchao")
def int8_weights(device, wrap):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    net = small_net(device, 64, 128, 32)
    quantize_(net, Int8WeightOnlyConfig())
    program = wrap(net)
    return inferring(lambda i: program(normal(device, 16 + i, 64, seed=i)))


@row("torchrl: advantages and PPO's loss", "torchrl", "tensordict")
def torchrl_ppo(device, wrap):
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from tensordict.nn import NormalParamExtractor
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    net = nn.Sequential(small_net(device, 8, 32, 4), NormalParamExtractor())
    actor = ProbabilisticActor(TensorDictModule(net, ["observation"], ["loc", "scale"]), in_keys=["loc", "scale"],
                               distribution_class=TanhNormal, return_log_prob=True)
    critic = ValueOperator(small_net(device, 8, 32, 1, seed=1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_module = ClipPPOLoss(actor, critic, entropy_bonus=False)

    def data(i):
        shape = (2, 10 + i)
        done = torch.zeros(*shape, 1, dtype=torch.bool, device=device)
        return TensorDict({
            "observation": normal(device, *shape, 8, seed=i), "action": normal(device, *shape, 2, seed=i).tanh() * 0.9,
            "action_log_prob": normal(device, *shape, seed=i),
            "next": TensorDict({"observation": normal(device, *shape, 8, seed=i + 30), "done": done, "terminated": done,
                                "reward": normal(device, *shape, 1, seed=i)}, batch_size=shape)}, batch_size=shape)

    inputs = [data(i) for i in range(12)]

    def step(batch):
        with torch.no_grad():
            advantage(batch)
        losses = loss_module(batch)
        return losses["loss_objective"] + losses["loss_critic"]

    program = wrap(step)
    return learning(loss_module, lambda i: program(inputs[i].clone()))


def _detection(name, gain):
    """``gain``: how large weights are. Those of a new model give scores that are all alike, so that rounding decides
    which boxes come first: half of eager's are not those that it finds in float64. With these they are, to 1e-6."""
    def build(device, wrap):
        from torchvision.models import detection

        torch.manual_seed(0)
        torch.backends.cudnn.allow_tf32 = False  # whose roundings decide, too
        # Few candidates, since the order of many is decided by rounding all the same.
        few = (dict(rpn_pre_nms_top_n_test=40, rpn_post_nms_top_n_test=15, box_detections_per_img=8)
               if name.startswith("faster") else dict(topk_candidates=40, detections_per_img=8))
        model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, min_size=160,
                                         max_size=320, **few).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    nn.init.kaiming_normal_(weight).mul_(gain)
        model.to(device)
        program = wrap(model)
        return inferring(lambda i: program([normal(device, 3, 160 + 16 * (i % 4), 200, seed=i).sigmoid(),
                                            normal(device, 3, 180, 160, seed=i).sigmoid()]))
    return build


# The compiled part of torchvision does not load beside a CPU build of torch.
row("torchvision: Faster R-CNN", "torchvision", gpu=True)(_detection("fasterrcnn_mobilenet_v3_large_320_fpn", 0.8))
row("torchvision: RetinaNet", "torchvision", gpu=True)(_detection("retinanet_resnet50_fpn", 0.74))
