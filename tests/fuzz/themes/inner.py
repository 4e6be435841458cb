"""Expressions that may be differentiated and mapped: of ``x``, the parameter of the function around them, and of what
that function closes over. ``<inner>`` is such a tensor, ``<ft>`` a floating point tensor to call the function on.

They stay within small numbers, and are smooth where a last digit would decide, so that another order of roundings shows
in no digit that is compared."""

from __future__ import annotations

from ..grammar import rules

KINDS = {
    "inner": rules("""
        x | 9
        x.sin() | 2
        <tensor.name>.float().sum().tanh() | 2
        G_x.sum().tanh() | 0.7
        <inner>.sin() | 2
        <inner>.tanh() | 2
        torch.sigmoid(<inner>) | 1
        <inner> * <inner> | 3
        <inner> + <inner> | 3
        <inner> - <float> % 2 | 0.7
        <inner> * 0.5 | 2
        <inner> / 2 | 0.7
        -<inner>
        <inner> + <int> % 3 | 1
        <inner>.clamp(-2.25, 2.25)
        <inner>.cos().exp()
        <inner>.pow(2)
        <inner>.sum() | 1
        <inner>.sum(0)
        <inner>.mean()
        <inner>.sum(-1, keepdim=True)
        <inner>.reshape(-1)
        <inner>.unsqueeze(0)
        <inner>.view(-1)[:2]
        <inner>[..., :1] | 0.7
        <inner>[0] | 0.5
        <inner>[..., None] | 0.5
        <inner>.t() | 0.5
        <inner>.T | 0.3
        <inner>.transpose(0, -1) | 0.5
        <inner>.reshape(-1).flip(0) | 0.6
        <inner>.cumsum(0) | 0.6
        <inner>.clone()
        <inner>.detach() | 0.5
        <inner>.contiguous() | 0.3
        torch.stack([<inner>, <inner>]).sum(0) | 0.6
        torch.cat([<inner>.reshape(-1), <inner>.reshape(-1)])[:4] | 0.6
        torch.where(<inner> > <int> + 0.3, <inner>, <inner>) | 0.8
        torch.softmax(<inner>, -1) | 0.8
        torch.nn.functional.softplus(<inner>) | 0.5
        torch.nn.functional.silu(<inner>) | 0.5
        torch.dot(<inner>.reshape(-1)[:2], <inner>.reshape(-1)[:2]) | 0.5
        torch.outer(<inner>.reshape(-1)[:2], <inner>.reshape(-1)[:3]) | 0.5
        torch.nn.functional.pad(<inner>, (1, 1)) | 0.4
        <inner>.norm() | 0.3
        <inner>.var(0, unbiased=False) | 0.3
        <inner>.logsumexp(-1) | 0.4
        <inner>.amax(-1) | 0.3
        torch.zeros_like(<inner>) + <inner> | 0.6
        torch.ones(3) * <inner> | 0.5
        x.new_zeros(x.shape) + <inner> | 0.4
        torch.zeros_like(<inner>).add_(<inner>) | 0.7
        <inner>.clone().mul_(<inner>) | 0.7
        <inner>.clone().fill_(<int>) | 0.3
        (x.shape[0] if x.dim() else 1) * <inner> | 0.5
        (<inner> if <bool.name> else <inner>) | 0.5
        (lambda c<#>: c<#> * c<#>.sin())(<inner>) | 0.6
        functools.reduce(torch.add, [<inner>, <inner>, x]) | 0.3
        sum(c<#> * x for c<#> in [1, 2]) | 0.3
        <obj.name>.n % 3 * <inner> | 0.4
        <fn.name>(2) * x | 0.3
        """),
    "ft": rules("""
        torch.arange(3.0) | 2
        torch.ones(3)
        torch.tensor(0.5) | 0.5
        torch.arange(6.0).view(2, 3) / 4 | 2
        torch.arange(6.0).view(3, 2).t() / 4
        torch.ones(3, 3) * 0.5 | 0.5
        torch.arange(8.0)[::2] / 8
        torch.ones(3).expand(2, 3) | 0.5
        torch.arange(3.0, dtype=torch.float64) | 0.4
        torch.zeros(0) | 0.1
        x.float() | 1
        <tensor.name>.float().tanh() | 4
        <tensor.name>.float().reshape(-1)[:3].cos() | 2
        <tensor>.float().sin() | 2
        """),
}
