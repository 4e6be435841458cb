"""Which candidate for a library call is used without timing: where what is known of the device leaves no doubt.

A template says so by itself, of sizes at which the time that the kernel behind the library's call takes is more than
the library may be ahead by (see ``Template.sure``). Everything else is left to the library, or to ``timing`` where
templates are switched on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import devices, logs

if TYPE_CHECKING:
    from ..graph.ir import Graph
    from .epilogues import Call
    from .template import Candidate

log = logs.channel("templates")


def asked(graph: Graph) -> bool:
    """Whether a graph has calls of which a template may be sure."""
    return any(n.op == "aten_call" and not n.several and devices.backend(n.type.device).sure_templates
               for n in graph.nodes)


def choose(call: Call) -> Candidate | None:
    """The candidate for a call; None for the library."""
    architecture = devices.backend(call.node.type.device).architecture(call.node.type.device)
    if len(call.results) > 1:  # the library would have stored one of them
        return None
    for template in dict.fromkeys(c.template for c in call.candidates):
        found = template.sure(template.problem(call.kernel), architecture)
        for c in call.candidates:
            if found is not None and c.template is template and c.configuration == found:
                log(f"{call.node.attrs['target']}: {c}, without timing")
                return c
    return None
