"""The grammar of random programs: templates of expressions by kind of value, and of statements.

A hole ``<kind>`` is an expression, ``<kind.name>`` a variable that is set, ``<kind.new>`` one to be set; ``<block>`` and ``<loop>`` (where
``break`` and ``continue`` may stand) are nested statements, ``<pass>`` a single one; ``<#>`` a number that is new in each use. A weight is the last
entry. What could grow without bound in a loop (``v += v``) is written so that it cannot: programs have to end.
"""

from __future__ import annotations

NAMES = {  # variables by the kind of value that they mostly hold
    "int": ("n", "k", "m"), "float": ("a", "b"), "tensor": ("x", "y", "z"), "list": ("v", "w"), "dict": ("d", "e"), "str": ("s", "r"),
    "tuple": ("t", "q"), "set": ("u",), "obj": ("o", "p"), "fn": ("g", "h"), "gen": ("it",), "bool": ("c",),
}
KINDS = tuple(NAMES)
GLOBALS = {"int": "G_n", "list": "G_v", "dict": "G_d", "tensor": "G_x", "obj": "G_o"}


def rules(text: str) -> list:
    """Lines ``template | weight`` (weight 1 if left out)."""
    rows = []
    for line in filter(None, map(str.strip, text.splitlines())):
        template, bar, weight = line.rpartition(" | ")
        rows.append((template, float(weight)) if bar else (line, 1.0))
    return rows


EXPRESSIONS = {
    "int": rules("""
        0
        1 | 2
        2 | 2
        -1
        3
        <int.name> | 8
        G_n
        (<int> + <int>) | 3
        (<int> - <int>) | 2
        (<int> * <int>) % 97 | 2
        <int> // (<int> or 2)
        <int> % (<int> or 3)
        <int> // <int> | 0.3
        (<int> & <int>)
        (<int> ^ 1)
        -<int>
        +<int> | 0.3
        ~<int>
        abs(<int>)
        min(<int>, <int>)
        max(<list>, default=<int>)
        (<int> if <bool> else <int>) | 2
        (<bool> and <int>)
        (<int> or <int>)
        len(<list>) | 2
        len(<dict>)
        len(<tuple>)
        len(<set>)
        len(<str>)
        <list.name>[<int>] | 0.5
        <list.name>[0] | 0.5
        (<list.name> or [3])[-1] | 2
        <list.name>[-1] | 0.5
        <list.name>.pop() | 0.5
        <list.name>.index(<int>) | 0.3
        <list.name>.count(<int>)
        <dict.name>[<key>] | 0.7
        <dict.name>.get(<key>, <int>) | 2
        <dict.name>.pop(<key>, <int>)
        <dict.name>.setdefault(<key>, <int>)
        sum(<list>)
        sum(c<#> + <int> for c<#> in <list>)
        next(iter(<list>), <int>)
        next(<gen.name>, <int>) | 2
        next(<gen.name>) | 0.4
        (<int.new> := <int>) | 2
        <obj>.n | 3
        <obj>.size | 2
        <obj>.step(<int>) | 2
        <obj>[<int>] | 0.4
        <obj>(<int>)
        C.made
        C.twice(<int>)
        C.count(<int>)
        int(<obj>)
        len(<obj>)
        <fn>(<int>) | 4
        (lambda c<#>, j<#>=<int>: c<#> + j<#>)(<int>)
        <tensor>.shape[0] | 1
        sum(<tensor>.shape) | 1
        <tensor>.dim()
        <tensor>.numel()
        <tensor>.size(0) | 0.4
        len(<tensor>) | 0.4
        int(<tensor>.sum().item())
        int(<tensor>.sum())
        sum(<tensor.name>.stride())
        ord(<str>[0]) | 0.4
        <str>.count('a')
        int(<float>)
        round(<float>)
        True + <int>
        bisect.bisect(<list>, <int>)
        functools.reduce(<fn>, [], <int>)
        functools.reduce(lambda c<#>, j<#>: c<#> - j<#>, <list>, <int>)
        operator.add(<int>, <int>)
        operator.itemgetter(0)(<list>) | 0.4
        zlib.crc32(<str>.encode()) % 7
        (jit.graph_break() or <int>)
        off(<int>) | 2
        sys.getsizeof(0) % 5
        math.gcd(<int>, 12)
        dict(enumerate(<list>)).get(<int>, 0)
        [*<list>, <int>][0]
        getattr(<obj>, 'n', <int>)
        getattr(<obj>, 'missing', <int>)
        {<key>: <int>}[<key>]
        <tuple>[0] | 0.5
        <tuple>[-1] | 0.3
        (yielded := [<int>]).pop()
        """),
    "float": rules("""
        0.5
        2.0
        -1.5
        float('inf')
        <float.name> | 5
        <int> / 2
        <int> / <int>
        <float> + <int>
        <float> * 0.5
        -<float>
        float(<int>)
        <tensor>.sum().item() | 0.6
        <tensor>.mean().item() | 0.3
        math.sqrt(abs(<int>))
        math.floor(<float>) + 0.25
        divmod(<float>, 2)[1]
        max(<float>, <float>)
        """),
    "bool": rules("""
        True
        False
        <bool.name> | 2
        <int> < <int> | 3
        <int> == <int> | 3
        <int> < <int> <= <int>
        <int> != <float>
        not <any>
        (<bool> and <bool>)
        (<bool> or <bool>)
        <int> in <list> | 2
        <key> in <dict> | 2
        <int> not in <set>
        'a' in <str>
        <any.name> is <any.name> | 2
        <any.name> is not None
        <any> == <any>
        <list> == <list>
        <obj> == <obj>
        <obj> < <obj>
        <str> == <str>
        <tuple> < <tuple>
        isinstance(<any>, (int, list))
        isinstance(<any>, torch.Tensor)
        callable(<any>)
        hasattr(<obj>, 'extra')
        any(c<#> > <int> for c<#> in <list>)
        all(<list>)
        bool(<any>)
        <tensor>.sum() > <int>
        (<tensor>.sum() > <int>).item()
        <tensor>.shape == <tensor>.shape
        <tensor>.dtype == torch.float32
        <tensor>.is_contiguous()
        torch.is_tensor(<any>)
        <str>.startswith('a')
        """),
    "str": rules("""
        'a'
        'ab'
        ''
        <str.name> | 4
        f'{<int>}' | 2
        f'{<int>:>3}{<str>!r}'
        f'{<any.name>!r:.20}'
        f'{<float>:.2f}|{<list>}'
        f'{<obj>}'
        f'{<int>:{<int>}}'
        (<str> + <str>)[-5:]
        <str>.upper()
        <str>[1:]
        <str>[::-1]
        str(<int>)
        str(<any.name>)[:20]
        repr(<list>)
        repr(<dict>)
        ','.join(map(str, <list>))
        ''.join(c<#> for c<#> in <str>)
        '%d-%s' % (<int>, <str>)
        '{} {x}'.format(<int>, x=<str>)
        type(<any>).__name__
        <str>.replace('a', 'b')
        <fn>.__name__
        str(<tensor>.shape)
        json.dumps(<list>)
        re.sub('a', lambda c<#>: str(<int>), <str>)
        off(<str>)
        """),
    "key": rules("""
        'a' | 5
        'b' | 3
        'zz' | 0.5
        <str>
        <int> | 0.4
        """),
    "list": rules("""
        [] | 0.7
        [1, 2]
        <list.name> | 7
        G_v
        [<int>] | 2
        [<int>, <int>, <int>] | 2
        [*<list.name>, <int>][:6] | 2
        <list>[1:]
        <list>[<int>:<int>]
        <list>[::-1]
        (<list> + <list>)[:6]
        (<list> * 2)[:6]
        [c<#> + <int> for c<#> in <list>] | 3
        [c<#> for c<#> in <list> if c<#> > <int>] | 2
        [<int> for c<#> in range(2) for j<#> in range(2)]
        [(c<#>, j<#>)[1] for c<#>, j<#> in zip(<list>, <list>)]
        sorted(<list>)
        sorted(<list>, key=<fn>)
        sorted(<list>, reverse=<bool>)
        list(range(<int> % 4)) | 2
        list(<gen>) | 2
        list(map(<fn>, <list>)) | 2
        list(filter(<fn>, <list>))
        list(reversed(<list>))
        list(<dict>.values())
        list(<set>)[:0]
        list(<list>)
        <list.name>.copy()
        copy.copy(<list>)
        copy.deepcopy(<list>)
        <obj>.v | 3
        <obj>.items()
        [i<#> * c<#> for i<#>, c<#> in enumerate(<list>)]
        heapq.nsmallest(2, <list>)
        off(<list>)
        list(itertools.chain(<list>, <list>))[:6]
        list(itertools.islice(<gen>, 3))
        list(itertools.accumulate(<list>))
        [<obj.name>.n for _ in <list>]
        <tensor>.tolist()[:3] | 0.4
        list(<tensor>.shape)
        """),
    "dict": rules("""
        {}
        {'a': 1, 'b': 2}
        <dict.name> | 6
        G_d
        {'a': <int>} | 2
        {**<dict>, <key>: <int>} | 2
        {<key>: <int>, <key>: <int>}
        {str(c<#>): c<#> for c<#> in <list>} | 2
        {k<#>: <int> for k<#> in <dict>}
        {k<#>: v<#> for k<#>, v<#> in <dict>.items() if v<#>}
        dict(a=<int>, b=<int>)
        dict(zip(<str>, <list>))
        dict.fromkeys(<str>, <int>)
        (<dict>|<dict>)
        <dict.name>.copy()
        vars(<obj>).copy()
        collections.OrderedDict(a=<int>)
        collections.defaultdict(int, <dict>)
        collections.Counter(<str>)
        keep(<int>, b=<int>)
        """),
    "tuple": rules("""
        ()
        (1, 2)
        <tuple.name> | 5
        (<int>,)
        (<int>, <int>) | 3
        (<any>, <any>)
        (<int>, *<list>)[:5] | 2
        tuple(<list>)
        tuple(c<#> for c<#> in <list>)
        <tuple>[::-1]
        (<tuple> + <tuple>)[:4]
        divmod(<int>, <int>)
        (<int.name>, <list.name>, <list.name>)
        Pair(<int>, <any>)
        Pair(<int>, <int>)._replace(left=<int>)
        tuple(<tensor>.shape)
        <tensor>.shape
        tuple(sorted(<dict>.items(), key=repr))
        spread(<int>, *<list>, k=<int>)
        spread(*<tuple>)
        spread(<int>, **<dict>)
        <str>.partition('a')
        """),
    "set": rules("""
        set()
        {1, 2}
        <set.name> | 4
        {<int>, <int>} | 2
        set(<list>) | 2
        {*<list>, <int>}
        {c<#> % 3 for c<#> in <list>}
        <set> & <set>
        <set> - {<int>}
        set(<dict>)
        frozenset(<list>)
        <set.name>.union(<list>)
        """),
    "obj": rules("""
        <obj.name> | 10
        G_o
        C(<int>) | 3
        D(<int>, <list>) | 3
        <obj> + <int> | 1.5
        (<obj> if <bool> else <obj>)
        copy.copy(<obj>)
        Slots(<int>, <any>)
        Data(<int>, [<int>])
        <obj>.same()
        """),
    "fn": rules("""
        <fn.name> | 7
        (lambda c<#>: c<#> + <int>) | 2
        (lambda c<#>: (<list.name>.append(c<#>), c<#>)[1])
        (lambda c<#>=<int>: c<#>)
        abs
        functools.partial(<fn>)
        functools.partial(operator.add, <int>)
        <obj>.step | 2
        C.twice
        off
        adder(<int>) | 2
        counted(<fn>)
        (<fn> if <bool> else <fn>)
        """),
    "gen": rules("""
        <gen.name> | 3
        (c<#> + <int> for c<#> in <list>) | 3
        iter(<list>) | 2
        iter(<tuple>)
        map(<fn>, <list>) | 2
        zip(<list>, <list>)
        enumerate(<list>)
        filter(None, <list>)
        pairs(<int>) | 2
        reversed(<list>)
        itertools.islice(itertools.count(<int>), 5)
        echo() | 1
        (c<#> for c<#> in <gen.name>)
        itertools.chain.from_iterable([<list>, <list>])
        """),
    "tensor": rules("""
        <tensor.name> | 14
        G_x
        <tensor> + <tensor> | 2
        <tensor> * <int> | 2
        <tensor> - <float>
        <int> - <tensor>
        <tensor> / 2
        <tensor> // 2
        <tensor> % 3
        -<tensor>
        <tensor>.abs()
        torch.relu(<tensor>)
        torch.sin(<tensor>)
        torch.sigmoid(<tensor>)
        <tensor>.clone()
        <tensor>.detach()
        <tensor>.contiguous()
        <tensor>[1:] | 2
        <tensor>[0] | 1
        <tensor>[<int>] | 0.5
        <tensor>[:<int>]
        <tensor>[::2]
        <tensor>[None]
        <tensor>[..., 0]
        <tensor>[<tensor> > 0] | 0.3
        <tensor>.view(-1) | 2
        <tensor>.reshape(-1)
        <tensor>.flatten()
        <tensor>.unsqueeze(0)
        <tensor>.squeeze(0)
        <tensor>.t()
        <tensor>.T
        <tensor>.transpose(0, -1)
        <tensor>.expand(2, -1) | 0.4
        <tensor>.narrow(0, 0, 1)
        <tensor>.sum() | 2
        <tensor>.sum(0)
        <tensor>.sum(-1, keepdim=True)
        <tensor>.max()
        <tensor>.amax(0)
        <tensor>.max(0).values
        <tensor>.mean()
        <tensor>.float().mean(0)
        <tensor>.cumsum(0)
        <tensor>.argmax()
        <tensor>.sort().values
        torch.softmax(<tensor>.float(), -1)
        torch.where(<tensor> > <int>, <tensor>, <tensor>) | 2
        torch.cat([<tensor>, <tensor>])[:6] | 0.5
        torch.stack([<tensor>, <tensor>]).sum(0)
        torch.maximum(<tensor>, <tensor>)
        <tensor>.clamp(0, <int>)
        <tensor>.to(torch.float64)
        <tensor>.long()
        <tensor>.float()
        (<tensor> > <int>)
        <tensor> == <tensor>
        torch.zeros(<int> % 4)
        torch.ones(3) * <int>
        torch.full((3,), <float>)
        torch.arange(<int> % 5)
        torch.tensor(<list>)
        torch.tensor(<int>)
        torch.zeros_like(<tensor>)
        <tensor>.new_ones(3)
        <tensor>.chunk(2)[0] | 0.5
        <tensor>.unbind(0)[0] | 0.5
        <tensor> @ <tensor> | 0.4
        <tensor>.pow(2).clamp(max=100)
        torch.stack([c<#> for c<#> in <tensor>])[:4]
        (<tensor> if <bool> else <tensor>)
        sum(<tensor>.unbind(0))
        <tensor>.add_(<int>)
        <tensor>.mul_(<tensor>)
        off(<tensor>)
        <dict.name>.get('t', <tensor>)
        <obj>.x
        <obj>.scaled(<tensor>) | 2
        torch.nn.functional.relu(<tensor>)
        """),
    "any": [(f"<{kind}>", 1.0) for kind in KINDS if kind not in ("fn", "gen")] + [("None", 1.0)],
}

EXCEPTIONS = ("Exception", "KeyError", "IndexError", "(KeyError, IndexError, ZeroDivisionError)", "TypeError", "ValueError", "ArithmeticError", "RuntimeError",
              "LookupError", "Stop", "StopIteration", "AttributeError")

STATEMENTS = [(t.strip("\n"), w) for t, w in [
    ("<int.new> = <int>", 5), ("<float.new> = <float>", 2), ("<bool.new> = <bool>", 1), ("<tensor.new> = <tensor>", 7), ("<list.new> = <list>", 4),
    ("<dict.new> = <dict>", 3), ("<str.new> = <str>", 3), ("<tuple.new> = <tuple>", 3), ("<set.new> = <set>", 2), ("<obj.new> = <obj>", 3),
    ("<fn.new> = <fn>", 2), ("<gen.new> = <gen>", 3),
    # variables
    ("<int.name>, <int.name> = <int>, <int>", 1), ("<list.new> = <list.new> = <list>", 1), ("<int.new>, *<list.new> = <list>", 0.4), ("<int.new>, *<list.new> = *<list>, <int>", 1),
    ("<int.new>, <int.new> = <tuple>", 0.4), ("(<int.new>, <str.new>), <tensor.new> = (<int>, <str>), <tensor>", 1), ("<int.new>, *_, <int.new> = <list>", 0.3),
    ("<int.name> += <int>", 2), ("<int.name> -= <int>", 1), ("<float.name> *= 0.5", 0.6), ("<any.name> = <any.name>", 0.3), ("del <any.name>", 0.5),
    ("<str.name> = (<str.name> + <str>)[-6:]", 0.6), ("<tuple.new> = (<tensor.name>, <tensor.name>, <list.name>)", 0.6), ("<any.name> = None", 0.15),
    ("<int.new>: int = <int>", 0.3), ("G_n", 0.1), ("globals()['G_n'] = <int>", 0.2), ("G_d[<key>] = <int>", 0.6), ("G_v.append(<int>)", 0.6), ("G_o.n = <int>", 0.6),
    ("C.made = <int>", 0.5), ("G_x.add_(<int>)", 0.4),
    # containers
    ("<list.name>.append(<int>)", 3), ("<list.name>.append(<any>)", 0.3), ("<list.name>.extend(<list>[-2:])", 1), ("<list.name>.insert(<int>, <int>)", 1), ("<list.name>.pop(<int>)", 0.3),
    ("<list.name>.remove(<int>)", 0.3), ("<list.name>.sort()", 0.6), ("<list.name>.sort(key=<fn>, reverse=<bool>)", 0.4), ("<list.name>.reverse()", 0.6), ("<list.name>.clear()", 0.3),
    ("<list.name>[<int>] = <int>", 0.6), ("<list.name>[:1] = [<int>]", 1), ("<list.name>[-1] += <int>", 0.5), ("<list.name>[<int>:<int>] = <list>[:2]", 1), ("<list.name>[::2] = <list>", 0.3), ("del <list.name>[<int>]", 0.3), ("del <list.name>[:1]", 0.4),
    ("del <list.name>[1:]", 0.4), ("<list.name> += <list>[:2]", 1), ("heapq.heappush(<list.name>, <int>)", 0.5), ("<list.name>.append(<list.name>)", 0.15),
    ("<dict.name>[<key>] = <int>", 3), ("<dict.name>[<key>] += <int>", 0.5), ("<dict.name>['t'] = <tensor>", 1), ("<dict.name>['l'] = <list>", 0.8), ("<dict.name>['l'].append(<int>)", 0.2),
    ("del <dict.name>[<key>]", 0.4), ("<dict.name>.update(<dict>)", 0.8), ("<dict.name>.update(b=<int>)", 0.5), ("<dict.name>.popitem()", 0.4), ("<dict.name>.clear()", 0.2),
    ("<dict.name> |= <dict>", 0.4), ("<dict.name>.setdefault('l', []).append(<int>)", 0.8), ("<set.name>.add(<int>)", 1), ("<set.name>.discard(<int>)", 0.5), ("<set.name> |= <set>", 0.4),
    ("<set.name>.update(<list>)", 0.4), ("<tuple.name> += (<int>,)[:1]", 0.3),
    # objects
    ("<obj>.n = <int>", 2), ("<obj>.n += <int>", 1), ("<obj>.extra = <any>", 1), ("<obj>.size = <int>", 1), ("<obj>.v.append(<int>)", 1), ("<obj>.x = <tensor>", 1), ("del <obj>.extra", 0.2),
    ("setattr(<obj>, 'extra', <int>)", 0.4), ("<obj>[<int>] = <int>", 0.2), ("<obj>.v = <list>", 0.8), ("<obj.name> += <int>", 0.6), ("<obj>.locked = <int>", 0.3), ("<obj>.x.add_(<int>)", 0.6),
    ("<obj>.link = <obj>", 0.5), ("vars(<obj>)['n'] = <int>", 0.2), ("<fn.name>.tag = <int>", 0.2),
    # tensors in place
    ("<tensor.name>.add_(<int>)", 2), ("<tensor.name> += <int>", 1.5), ("<tensor.name> *= <tensor>", 1), ("<tensor.name>[0] = <int>", 1), ("<tensor.name>[1:] += <int>", 1),
    ("<tensor.name>[<int>] = <tensor>", 0.6), ("<tensor.name>.copy_(<tensor>)", 0.8), ("<tensor.name>.zero_()", 0.6), ("<tensor.name>.view(-1)[0] = <int>", 0.6), ("<tensor.name>[<tensor> > 1] = <int>", 0.6),
    ("<tensor.name>[...] = <tensor>", 0.5), ("torch.add(<tensor>, <int>, out=<tensor.name>)", 0.2), ("<tensor.name>.clamp_(max=<int>)", 0.4), ("<tensor.name>.t_()", 0.1),
    ("<tensor.new> = <tensor.name>.view(-1)\n<tensor.name>.mul_(2)", 0.6), ("<tensor.new>, <tensor.new> = <tensor>.chunk(2)", 0.4), ("<tensor.new>, <int.new> = <tensor>, <tensor>.shape[0]", 0.4),
    # breaks and effects
    ("jit.graph_break()", 1.5), ("print(<any>)", 1), ("print(<int>, <str>, sep='-')", 0.6), ("<float.new> = <tensor>.sum().item()", 0.6), ("off(<any>)", 0.8), ("<any.name> = off(<any>)", 0.2), ("<tensor.new> = off(<tensor>)", 0.5),
    ("log.append(<any>)", 2), ("log.append((<any>, <any>))", 1), ("<obj>.step(<int>)", 1), ("<fn>(<int>)", 1), ("change(<list>, <int>)", 1), ("change(<list>, k=<int>)", 0.5),
    ("next(<gen.name>)", 0.3), ("<gen.name>.send(<int>)", 0.3), ("<gen.name>.close()", 0.3), ("log.extend(itertools.islice(<gen.name>, 2))", 0.5), ("import math", 0.3), ("from math import floor", 0.2), ("assert <bool>", 0.15),
    ("assert <bool>, <str>", 0.3), ("raise <raise>", 0.25), ("raise <raise> from None", 0.15), ("<any>", 0.5), ("print(locals().get('n'))", 0.1), ("random.Random(<int>).random()", 0.2),
    # control
    ("if <bool>:\n<block>", 3), ("if <bool>:\n<block>\nelse:\n<block>", 3), ("if <bool>:\n<block>\nelif <bool>:\n<block>\nelse:\n<block>", 1),
    ("if (<int.new> := <int>) > 1:\n<block>", 0.8),
    ("for <int.new> in range(<int> % 4):\n<loop>", 3), ("for <int.new> in range(3):\n<loop>\nelse:\n<block>", 1.5), ("for i<#>, <int.new> in enumerate(<list>[:3]):\n<loop>", 1.2),
    ("for <int.new>, j<#> in zip(<list>, range(3)):\n<loop>", 1), ("for <str.new>, <int.new> in <dict>.items():\n<loop>", 1), ("for <int.new> in itertools.islice(<gen>, 3):\n<loop>", 1.2),
    ("for <tensor.new> in <tensor>[:3]:\n<loop>", 1), ("for <tensor.new> in (<tensor>, <tensor>):\n<loop>", 1), ("for <str.new> in <str>[:3]:\n<loop>", 0.5),
    ("i<#> = 0\nfor <int.new> in <list.name>:\n    i<#> += 1\n    if i<#> > 4: break\n<loop>", 1.5), ("i<#> = 0\nfor <int.new> in <gen>:\n    i<#> += 1\n    if i<#> > 3: break\n<loop>\nelse:\n<block>", 0.8),
    ("for <obj.new> in (<obj>, <obj>):\n<loop>", 0.5),
    ("i<#> = 0\nwhile i<#> < 3 and <bool>:\n    i<#> += 1\n<loop>", 1.5), ("i<#> = 3\nwhile i<#>:\n    i<#> -= 1\n<loop>\nelse:\n<block>", 1), ("i<#> = 0\nwhile True:\n    i<#> += 1\n    if i<#> > 2: break\n<loop>", 0.8),
    ("try:\n<block>\nexcept <exc> as err:\n    log.append(repr(err))\n<block>", 3), ("try:\n<block>\nexcept <exc>:\n<block>", 2), ("try:\n<block>\nexcept <exc>:\n<block>\nexcept <exc> as err:\n    log.append(type(err.__context__).__name__)\n<block>", 1),
    ("try:\n<block>\nfinally:\n<block>", 2), ("try:\n<block>\nexcept <exc>:\n<block>\nelse:\n<block>\nfinally:\n<block>", 1.5), ("try:\n<block>\nexcept <exc> as err:\n    raise Stop(str(err)) from err", 0.5),
    ("try:\n<block>\nexcept <exc>:\n<block>\n    raise", 0.4), ("try:\n<block>\n    raise <raise>\nexcept <exc> as err:\n    log.append(err)\n<block>", 1), ("try:\n<block>\nexcept:\n<block>", 0.3), ("try:\n<block>\nexcept* ValueError as err:\n    log.append(type(err).__name__)", 0.15), ("for <int.new> in pairs(<int>):\n<loop>", 0.8),
    ("with Scope(log):\n<block>", 1.5), ("with Scope(log, KeyError) as <int.new>:\n<block>", 1.5), ("with Scope(log) as <int.new>, managed(log) as <str.new>:\n<block>", 1), ("with managed(log):\n<block>", 1),
    ("with torch.no_grad():\n<block>", 0.6), ("with contextlib.suppress(<exc>):\n<block>", 0.8), ("with contextlib.nullcontext(<int>) as <int.new>:\n<block>", 0.3),
    ("match <any>:\n    case 0 | 1:\n<deep>\n    case [<int.new>, *<list.new>]:\n<deep>\n    case {'a': <int.new>, **<dict.new>}:\n<deep>\n    case str() | None:\n<deep>\n    case C(n=<int.new>) if <int.new>:\n<deep>\n    case _:\n<deep>", 1),
    ("match <tuple>:\n    case (<int.new>, 0):\n<deep>\n    case Pair(left=<int.new>):\n<deep>\n    case (_, <int.new>) if <bool>:\n<deep>", 0.5),
    ("<def>", 2.5), ("class K<#>(C):\n    made = <int>\n    def step(self, n):\n        return super().step(n) + <int>\n<obj.new> = K<#>(<int>)", 0.5),
    ("@jit.disable\ndef g<#>(n):\n    return n + <int>\n<fn.new> = g<#>", 0.2),
]]
JUMPS = {"loop": [("break", 1), ("continue", 1), ("if <bool>: break", 2), ("if <bool>: continue", 2)],
         "def": [("return <out>", 1), ("if <bool>: return <out>", 2)],
         "gen": [("yield <int>", 5), ("<int.new> = yield <int>", 3), ("yield from <list>", 2), ("log.append((yield <int>))", 1), ("yield from <gen>", 1), ("return <int>", 0.5)]}
