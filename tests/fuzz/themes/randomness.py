"""Random numbers of ``random``, NumPy and PyTorch: from their global generators, which are as eager leaves them, and
from generators of the program's own."""

from __future__ import annotations

from ..grammar import rules
from .theme import Theme

PRELUDE = """
def shuffled(v):
    v = list(v)
    random.shuffle(v)
    return v
"""

EXPRESSIONS = {
    "int": rules("""
        random.randint(0, 3) | 2
        random.randrange(1, 5)
        random.choice((<list> or [1]))
        random.getrandbits(2)
        int(random.random() * 5)
        random.Random(<int>).randint(0, 9)
        int(np.random.randint(0, 5)) | 2
        int(np.random.default_rng(<int> % 7).integers(0, 5))
        int(np.random.RandomState(<int> % 7).randint(5))
        int(np.random.choice([1, 2, 3]))
        int(torch.randint(0, 5, ()).item()) | 0.5
        torch.initial_seed() % 7 | 0.3
        """),
    "float": rules("""
        round(random.random(), 4)
        round(random.uniform(0, <int>), 4)
        round(random.gauss(0, 1), 4)
        round(float(np.random.rand()), 4)
        round(float(np.random.normal(<int>, 1)), 4) | 0.5
        """),
    "list": rules("""
        shuffled(<list>) | 2
        random.sample([1, 2, 3], 2)
        random.choices([1, 2, 3], k=<int> % 4)
        np.random.permutation(4).tolist()[:3]
        torch.randperm(3).tolist()
        [random.randint(0, 4) for c<#> in <list>]
        np.random.randint(0, 4, 3).tolist()
        """),
    "tensor": rules("""
        torch.rand(3) | 3
        torch.randn(3) | 2
        torch.randn(2, 3)
        torch.rand_like(<tensor>.float()) | 2
        torch.randn_like(<tensor>.float()) | 2
        torch.randint(0, 5, (3,)) | 1.5
        torch.randperm(4) | 1
        torch.bernoulli(torch.sigmoid(<tensor>.float()))
        torch.nn.functional.dropout(<tensor>.float(), 0.5) | 2
        torch.nn.functional.dropout(<tensor>.float(), training=<bool>)
        torch.normal(0.0, 1.0, (3,))
        torch.multinomial(torch.ones(4), 2)
        torch.empty(3).uniform_() | 1.5
        torch.empty(3).normal_(<int>, 2)
        <tensor>.float().exponential_() | 0.5
        torch.rand(3, generator=torch.Generator().manual_seed(<int> % 9))
        torch.from_numpy(np.random.rand(3)) | 1.5
        torch.from_numpy(np.random.randn(2, 3))
        torch.as_tensor(np.random.default_rng(<int> % 9).random(3)) | 1.5
        torch.as_tensor(np.random.uniform(0, 1, 3) * <int>)
        <tensor> * random.random()
        <tensor> + random.randint(0, 4)
        torch.tensor(random.choices([1, 2, 3], k=3))
        torch.tensor([random.random(), random.random()])
        """),
}

STATEMENTS = [
    ("random.seed(<int>)", 1), ("np.random.seed(abs(<int>) % 9)", 1), ("torch.manual_seed(<int>)", 1.5),
    ("random.shuffle(<list.name>)", 1), ("np.random.shuffle(<list.name>)", 0.5),
    ("<tensor.name>.uniform_()", 0.7), ("<tensor.name>.normal_()", 0.7), ("<tensor.name>.random_(0, 5)", 0.4),
    ("<tensor.name>.bernoulli_(0.5)", 0.4), ("log.append(random.random())", 1),
    ("log.append(np.random.rand(2))", 1), ("log.append(torch.rand(2))", 1),
    ("st_<#> = random.getstate()\nlog.append(random.random())\nrandom.setstate(st_<#>)", 0.5),
    ("st_<#> = torch.get_rng_state()\nlog.append(torch.rand(2))\ntorch.set_rng_state(st_<#>)", 0.5),
    ("with torch.random.fork_rng(devices=[]):\n<block>", 0.4),
    ("rng_<#> = random.Random(<int>)\nlog.append((rng_<#>.random(), rng_<#>.randint(0, 9)))", 0.7),
    ("rng_<#> = np.random.default_rng(abs(<int>))\nlog.append(rng_<#>.random(2))\nlog.append(rng_<#>.integers(0, 9))",
     0.7),
    ("rng_<#> = torch.Generator().manual_seed(<int>)\nlog.append(torch.rand(2, generator=rng_<#>))\n"
     "log.append(torch.randperm(3, generator=rng_<#>))", 0.7),
    ("if random.random() < 0.5:\n<block>\nelse:\n<block>", 1),
    ("for <int.new> in range(random.randint(1, 3)):\n<loop>", 0.7),
]

THEME = Theme(PRELUDE, EXPRESSIONS, STATEMENTS, inner=False)
