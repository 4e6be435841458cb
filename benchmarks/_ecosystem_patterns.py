"""Rows of benchmarks/ecosystem.py: patterns that need PyTorch alone."""

from __future__ import annotations

import numpy as np
import torch
from _ecosystem_common import inferring, integers, learning, normal, row
from torch import nn
from torch.nn import functional as F


def small_net(device, inputs=32, hidden=64, outputs=8, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                         nn.Linear(hidden, outputs)).to(device)


# --- torch.func ---------------------------------------------------------------------------------------------------

@row("func: per-sample gradients")
def per_sample(device, wrap):
    net = small_net(device)
    parameters = {k: v.detach() for k, v in net.named_parameters()}

    def loss(parameters, x, y):
        return F.cross_entropy(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    program = wrap(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0)))
    return lambda i: program(parameters, normal(device, 16 + i, 32, seed=i), integers(device, 8, 16 + i, seed=i))


@row("func: jacrev and hessian")
def derivatives(device, wrap):
    net = small_net(device, 16, 32, 4)
    weights = normal(device, 4)

    def both(x):
        return torch.func.jacrev(net)(x), torch.func.hessian(lambda x: (net(x) * weights).sum())(x)

    program = wrap(both)
    return inferring(lambda i: program(normal(device, 16, seed=i)))


@row("func: jvp and jacfwd")
def forward_mode(device, wrap):
    net = small_net(device, 16, 32, 4)

    def both(x, v):
        return torch.func.jvp(net, (x,), (v,)), torch.func.jacfwd(net)(x)

    program = wrap(both)
    return inferring(lambda i: program(normal(device, 16, seed=i), normal(device, 16, seed=50 + i)))


@row("func: an ensemble")
def ensemble(device, wrap):
    nets = [small_net(device, seed=s) for s in range(4)]
    parameters, buffers = torch.func.stack_module_state(nets)

    def call(x):
        return torch.vmap(lambda p, b, x: torch.func.functional_call(nets[0], (p, b), (x,)), (0, 0, None))(
            parameters, buffers, x)

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 16 + i, 32, seed=i)))


@row("func: an inner loop of gradient steps (MAML)")
def maml(device, wrap):
    net = small_net(device, 16, 32, 4)

    def outer(xs, ys, xq, yq):
        def task(x, y, xq, yq):
            parameters = dict(net.named_parameters())
            for _ in range(2):
                gradients = torch.func.grad(
                    lambda p: F.mse_loss(torch.func.functional_call(net, p, (x,)), y))(parameters)
                parameters = {k: v - 0.1 * gradients[k] for k, v in parameters.items()}
            return F.mse_loss(torch.func.functional_call(net, parameters, (xq,)), yq)
        return torch.vmap(task)(xs, ys, xq, yq).mean()

    program = wrap(outer)

    def loss(i):
        return program(normal(device, 4, 8 + i, 16, seed=i), normal(device, 4, 8 + i, 4, seed=20 + i),
                       normal(device, 4, 8, 16, seed=40 + i), normal(device, 4, 8, 4, seed=60 + i))

    return learning(net, loss)


# --- control flow and attention -----------------------------------------------------------------------------------

@row("flex_attention: a score mod")
def flex_score(device, wrap):
    from torch.nn.attention.flex_attention import flex_attention

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    bias = normal(device, 4)

    def call(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, m, n: score + bias[h] * (n - m))

    program = wrap(call)
    return inferring(lambda i: program(*(normal(device, 2, 4, 128 * (1 + i % 4), 32, seed=i + s).to(dtype)
                                         for s in (0, 100, 200))))


@row("flex_attention: a block mask, with gradients")
def flex_mask(device, wrap):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    masks = {n: create_block_mask(lambda b, h, m, k: (m >= k) & (m - k < 100), None, None, n, n, device=device)
             for n in (128, 256, 384, 512)}

    def call(q, k, v, mask):
        return flex_attention(q, k, v, block_mask=mask)

    program = wrap(call)

    def run(i):
        n = 128 * (1 + i % 4)
        qkv = [normal(device, 2, 4, n, 32, seed=i + s).detach().requires_grad_() for s in (0, 100, 200)]
        if device == "cpu":  # for which the library has no gradients
            return program(*(t.detach() for t in qkv), masks[n])
        out = program(*qkv, masks[n])
        out.square().sum().backward()
        return out, [t.grad for t in qkv]

    return run


@row("torch.cond")
def cond(device, wrap):
    def call(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,))

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 64, 32, seed=i)))


@row("torch.while_loop")
def while_loop(device, wrap):
    from torch._higher_order_ops.while_loop import while_loop as loop

    def call(x, n):
        return loop(lambda x, k: k > 0, lambda x, k: (torch.tanh(x * 1.1), k - 1), (x, n))

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 64, seed=i), torch.tensor(3 + i, device=device)))


@row("scan")
def scanned(device, wrap):
    from torch._higher_order_ops.scan import scan

    def call(first, xs):
        return scan(lambda carry, x: (carry * 0.9 + x, carry.tanh()), first, xs, dim=0)

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 16, seed=i), normal(device, 20 + i, 16, seed=i)))


@row("while and if on values of tensors")
def newton(device, wrap):
    def solve(a, x):
        step = torch.ones_like(x)
        while step.abs().max() > 1e-4:
            if (x < 0).any():
                x = x.abs()
            step = (x * x - a) / (2 * x)
            x = x - step
        return x

    program = wrap(solve)
    return inferring(lambda i: program(normal(device, 64, seed=i).abs() + 0.5, normal(device, 64, seed=90 + i)))


# --- recurrent nets -----------------------------------------------------------------------------------------------

class CharLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(40, 32), nn.LSTM(32, 64, 2, batch_first=True), \
            nn.Linear(64, 40)

    def forward(self, ids, state=None):
        out, state = self.lstm(self.embedding(ids), state)
        return self.head(out), state


@row("char-LSTM: trained and sampled")
def char_lstm(device, wrap):
    torch.manual_seed(0)
    model = CharLSTM().to(device)
    program = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def run(i):
        ids = integers(device, 40, 8, 24 + i, seed=i)
        loss = F.cross_entropy(program(ids[:, :-1])[0].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            token, state, text = ids[:1, :1], None, []
            for _ in range(8):
                logits, state = program(token, state)
                token = logits[:, -1].argmax(-1, keepdim=True)
                text.append(token)
        return loss, logits, state, [p.detach() for p in model.parameters()]

    return run


@row("GRU: packed sequences")
def gru(device, wrap):
    torch.manual_seed(0)
    model = nn.GRU(16, 32, batch_first=True).to(device)

    def call(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = model(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].sum() + state.sum()

    program = wrap(call)
    return learning(model, lambda i: program(normal(device, 4, 10 + i, 16, seed=i),
                                             torch.tensor([10 + i, 5, 7, 3 + i % 3])))


# --- reinforcement learning ---------------------------------------------------------------------------------------

class Policy(nn.Module):
    def __init__(self, observations=8, actions=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, 64), nn.Tanh(), nn.Linear(64, actions))

    def forward(self, observation):
        return torch.distributions.Categorical(logits=self.body(observation))


class Environment:
    """An environment of NumPy arrays, as in gymnasium."""

    def __init__(self, seed, length):
        self.random, self.length = np.random.default_rng(seed), length

    def reset(self):
        self.state, self.left = self.random.standard_normal(8).astype(np.float32), self.length
        return self.state

    def step(self, action):
        self.left -= 1
        self.state = 0.9 * self.state + 0.1 * self.random.standard_normal(8).astype(np.float32)
        return self.state, float(self.state[action]), self.left == 0


@row("policy: acts in a loop of a NumPy environment", random=True)
def acting(device, wrap):
    torch.manual_seed(0)
    policy = Policy().to(device)

    def act(observation):
        with torch.no_grad():
            distribution = policy(torch.as_tensor(observation, device=device))
            action = distribution.sample()
            return action.cpu().numpy(), distribution.log_prob(action), distribution.entropy()

    program = wrap(act)

    def run(i):
        torch.manual_seed(i)
        environment = Environment(i, 16)
        observation, done, seen = environment.reset(), False, []
        while not done:
            action, logarithm, entropy = program(observation)
            observation, reward, done = environment.step(int(action))
            seen.append((action, logarithm, entropy, reward))
        return seen

    return run


@row("policy: REINFORCE, episodes of varying length", random=True)
def reinforce(device, wrap):
    torch.manual_seed(0)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)

    def act(observation):
        distribution = policy(torch.as_tensor(observation, device=device))
        action = distribution.sample()
        return action, distribution.log_prob(action)

    def update(logarithms, rewards):
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + 0.99 * total
            returns.insert(0, total)
        returns = torch.tensor(returns, device=device)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(torch.stack(logarithms) * returns).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    act, update = wrap(act), wrap(update)

    def run(i):
        torch.manual_seed(i)
        environment = Environment(i, 10 + 2 * i)
        observation, done, logarithms, rewards = environment.reset(), False, [], []
        while not done:
            action, logarithm = act(observation)
            observation, reward, done = environment.step(int(action))
            logarithms.append(logarithm)
            rewards.append(reward)
        return update(logarithms, rewards), [p.detach() for p in policy.parameters()]

    return run


@row("policy: a Gaussian one, PPO's loss")
def ppo(device, wrap):
    torch.manual_seed(0)
    actor, critic = small_net(device, 16, 64, 4), small_net(device, 16, 64, 1)
    both = nn.ModuleList([actor, critic])

    def call(observations, actions, old, advantages, returns):
        distribution = torch.distributions.Normal(actor(observations), 0.5)
        ratio = (distribution.log_prob(actions).sum(-1) - old).exp()
        clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        value = F.mse_loss(critic(observations).squeeze(-1), returns)
        return -clipped.mean() + 0.5 * value - 0.01 * distribution.entropy().sum(-1).mean()

    program = wrap(call)

    def loss(i):
        n = 64 + 8 * i
        return program(normal(device, n, 16, seed=i), normal(device, n, 4, seed=i + 20), normal(device, n, seed=i + 40),
                       normal(device, n, seed=i + 60), normal(device, n, seed=i + 80))

    return learning(both, loss)


@row("distributions: a VAE", random=True)
def vae(device, wrap):
    from torch.distributions import Normal, kl_divergence

    torch.manual_seed(0)
    encoder, decoder = small_net(device, 64, 64, 16), small_net(device, 8, 64, 64)

    def call(x):
        mean, logarithm = encoder(x).chunk(2, -1)
        posterior = Normal(mean, F.softplus(logarithm))
        prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
        likelihood = Normal(decoder(posterior.rsample()), 1.0).log_prob(x).sum(-1)
        return (kl_divergence(posterior, prior).sum(-1) - likelihood).mean()

    program = wrap(call)

    def loss(i):
        torch.manual_seed(i)
        return program(normal(device, 32 + i, 64, seed=i))

    return learning(nn.ModuleList([encoder, decoder]), loss)


# --- what lives beside tensors ------------------------------------------------------------------------------------

@row("NumPy in and out")
def numpy_in_and_out(device, wrap):
    def call(a, b):
        x = np.maximum(a @ b, 0)
        x = (x - x.mean(axis=-1, keepdims=True)) / (x.std(axis=-1, keepdims=True) + 1e-5)
        return np.concatenate([np.sin(x), np.log1p(np.abs(x))], axis=-1)

    program = wrap(call)

    def run(i):
        random = np.random.default_rng(i)
        return program(random.standard_normal((32 + i, 64)), random.standard_normal((64, 16)))

    return run


@row("NumPy arrays made into tensors and back")
def from_numpy(device, wrap):
    net = small_net(device)

    def call(array):
        with torch.no_grad():
            return net(torch.from_numpy(array).to(device)).softmax(-1).cpu().numpy()

    program = wrap(call)
    return lambda i: program(np.random.default_rng(i).standard_normal((16 + i, 32)).astype(np.float32))


class Named(torch.Tensor):
    """A subclass with an attribute that follows through operations."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(out, cls):
            out.title = next((a.title for a in args if isinstance(a, cls)), "")
        return out


@row("a subclass with __torch_function__")
def function_subclass(device, wrap):
    net = small_net(device)

    def call(x):
        out = (net(x) * 2).relu()
        return out.as_subclass(torch.Tensor), out.title

    program = wrap(call)

    def run(i):
        x = normal(device, 16 + i, 32, seed=i).detach().as_subclass(Named)
        x.title = "images"
        return program(x)

    return inferring(run)


class Scaled(torch.Tensor):
    """A weight kept as int8 with a scale for each row, which is made whole where it is used."""

    @staticmethod
    def __new__(cls, values, scales):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scales.dtype, device=values.device)

    def __init__(self, values, scales):
        self.values, self.scales = values, scales

    def __tensor_flatten__(self):
        return ["values", "scales"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["values"], inner["scales"])

    def whole(self):
        return self.values.to(self.scales.dtype) * self.scales

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return Scaled(args[0].values.detach(), args[0].scales.detach())
        if function is torch.ops.aten.t.default:
            return args[0].whole().t()
        args = [a.whole() if isinstance(a, Scaled) else a for a in args]
        return function(*args, **(kwargs or {}))


@row("a wrapper subclass with __torch_dispatch__")
def wrapper_subclass(device, wrap):
    net = small_net(device)
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach()
            scales = weight.abs().amax(1, keepdim=True) / 127
            layer.weight = nn.Parameter(Scaled((weight / scales).round().to(torch.int8), scales), requires_grad=False)
    program = wrap(net)
    return inferring(lambda i: program(normal(device, 16 + i, 32, seed=i)))


@row("nested tensors (jagged)")
def jagged(device, wrap):
    torch.manual_seed(0)
    layers, norm = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)]).to(device), nn.LayerNorm(32).to(device)

    def call(x):
        x = norm(x)
        q, k, v = (layer(x).unflatten(-1, (4, 8)).transpose(1, 2) for layer in layers)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2).values()

    program = wrap(call)

    def run(i):
        lengths = [(7 * (i + 1) * (b + 3)) % 13 + 2 for b in range(6)]
        parts = [normal(device, n, 32, seed=b) for b, n in enumerate(lengths)]
        return program(torch.nested.nested_tensor(parts, layout=torch.jagged))

    return inferring(run)


@row("masked tensors and indexing with masks")
def masks(device, wrap):
    def call(x, mask):
        rows = x[mask.any(1)]
        mean = torch.where(mask, x, 0).sum(1) / mask.sum(1).clamp(min=1)
        return rows.sum(), mean, x.masked_fill(~mask, -1e9).softmax(-1)

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 16 + i, 32, seed=i),
                                       normal(device, 16 + i, 32, seed=i + 50) > 1.5))


_library: list = []


def _own_operators():
    """Operators of the program's own, declared once: ``(swish with a gradient, a scaling that changes its input)``."""
    if _library:
        return _library

    @torch.library.custom_op("ecosystem::swish", mutates_args=())
    def swish(x: torch.Tensor, beta: float) -> torch.Tensor:
        return x * torch.sigmoid(beta * x)

    swish.register_fake(lambda x, beta: torch.empty_like(x))

    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        sigmoid = torch.sigmoid(ctx.beta * x)
        return gradient * (sigmoid + ctx.beta * x * sigmoid * (1 - sigmoid)), None

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.beta = inputs[1]

    swish.register_autograd(backward, setup_context=setup)

    @torch.library.custom_op("ecosystem::rescale_", mutates_args=("x",))
    def rescale(x: torch.Tensor, by: float) -> None:
        x.mul_(by)

    _library.extend((swish, rescale))
    return _library


@row("operators of torch.library, with a gradient")
def own_operators(device, wrap):
    swish, rescale = _own_operators()
    net = small_net(device)

    def call(x):
        y = swish(net(x), 1.5)
        scale = torch.ones(8, device=x.device)
        rescale(scale, 0.5)
        return (y * scale).square().mean()

    program = wrap(call)
    return learning(net, lambda i: program(normal(device, 16 + i, 32, seed=i)))


@row("an autograd.Function of the program's own")
def own_function(device, wrap):
    class Clipped(torch.autograd.Function):
        @staticmethod
        def forward(context, x, limit):
            context.save_for_backward(x)
            context.limit = limit
            return x.clamp(-limit, limit)

        @staticmethod
        def backward(context, gradient):
            x, = context.saved_tensors
            return gradient * (x.abs() <= context.limit), None

    net = small_net(device)
    program = wrap(lambda x: Clipped.apply(net(x), 0.5).square().mean())
    return learning(net, lambda i: program(normal(device, 16 + i, 32, seed=i)))


@row("a triton kernel of the program's own", "triton", gpu=True)
def own_triton(device, wrap):
    from _ecosystem_triton import add_scaled

    def call(x, y):
        return add_scaled(x.sin(), y, 0.5).relu()

    program = wrap(call)
    return inferring(lambda i: program(normal(device, 1000 + 64 * i, 256, seed=i), normal(device, 256, seed=i)))


@row("a triton kernel with autotune, as triton_op", "triton", gpu=True)
def own_triton_op(device, wrap):
    from _ecosystem_triton import row_softmax

    program = wrap(lambda x: row_softmax(x * 2) + 1)
    return inferring(lambda i: program(normal(device, 512 + 64 * i, 1000, seed=i)))


@row("features by forward hooks")
def hooks(device, wrap):
    net, seen = small_net(device), {}
    for name, layer in net.named_children():
        if isinstance(layer, nn.Tanh):
            layer.register_forward_hook(lambda m, args, out, name=name: seen.__setitem__(name, out))
    program = wrap(net)

    def run(i):
        out = program(normal(device, 16 + i, 32, seed=i))
        return out, dict(seen)

    return inferring(run)


@row("a token at a time: top-k sampling", random=True)
def sampling(device, wrap):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()
    embedding, head = nn.Embedding(50, 64).to(device), nn.Linear(64, 50).to(device)

    def step(ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        logits = head(body(embedding(ids), mask=mask, is_causal=True))[:, -1] / 0.8
        values, _ = logits.topk(10)
        logits = logits.masked_fill(logits < values[:, -1:], -float("inf"))
        return torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)

    program = wrap(step)

    def run(i):
        torch.manual_seed(i)
        ids = integers(device, 50, 2, 4, seed=i)
        for _ in range(12):
            ids = program(ids)
        return ids

    return inferring(run)
