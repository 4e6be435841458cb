"""The grammar of random programs: templates of expressions by kind of value, and of statements.

A hole ``<kind>`` is an expression, ``<kind.name>`` a variable that is set, ``<kind.new>`` one to be set; ``<block>`` and ``<loop>`` (where
``break`` and ``continue`` may stand) are nested statements, ``<pass>`` a single one; ``<#>`` a number that is new in each use. A weight is the last
entry. What could grow without bound in a loop (``v += v``) is written so that it cannot: programs have to end.
"""

from __future__ import annotations

NAMES = {  # variables by the kind of value that they mostly hold
    "int": ("n", "k", "m"), "float": ("a", "b"), "tensor": ("x", "y", "z"), "list": ("v", "w"), "dict": ("d", "e"), "str": ("s", "r"),
    "tuple": ("t", "q"), "set": ("u",), "obj": ("o", "l"), "fn": ("g", "h"), "gen": ("it",), "bool": ("c",), "co": ("co",), "rec": ("rec", "p"),
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
        <rec>.n | 2
        next(<co.name>, <int>) | 2
        <co.name>.send(None) | 0.5
        abs(<rec>) | 0.5
        (<rec> @ <rec>) | 0.3
        sum(<rec.name>) | 0.3
        Both(<int>).once
        Both(n=<int>, extra=3)[<int>] | 0.3
        Both(<int>).seven | 0.3
        Point(<int>, m=<int>).total
        Point(<int>).moved(by=<int>).n
        Shade(<int> % 2 + 1) | 0.5
        cached(<int>)
        catching(G_v, <fn>, <int>)
        counter(<int>)[0](<int>)
        functools.reduce(operator.mul, <list>[:2], <int>) % 97
        functools.reduce(lambda c<#>, j<#>: (c<#> * j<#> + <int>) % 11, <tuple>, 1) | 0.3
        functools.partial(spread, <int>, k=<int>)(<int>)[0]
        (lambda *c<#>, **j<#>: len(c<#>) + len(j<#>))(*<list>, **{'a': <int>})
        sum(itertools.chain(<list>, (<int>,)))
        sum(i<#> * j<#> for i<#>, j<#> in zip(<list>, itertools.count(<int>)))
        sum(1 for _ in itertools.takewhile(lambda c<#>: c<#> < <int>, <list>))
        len(list(itertools.groupby(sorted(<list>), key=lambda c<#>: c<#> % 2)))
        max(<dict>.values(), default=<int>, key=repr) | 0.3
        len(<dict>.keys() & {'a', 'b'})
        len(<set> ^ <set>)
        <tensor>.reshape(-1)[:1].sum().item() | 0.4
        tail(<tensor>).numel() | 0.5
        hash(Vec(len(<str>), 1)) % 3 | 0.3
        operator.attrgetter('n')(<rec>)
        operator.methodcaller('count', <int>)(<list>)
        [j<#> for i<#> in (<list>, <list>) for j<#> in i<#> if j<#>][:1].__len__()
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
        <rec> == <rec>
        <rec> < <rec> | 0.3
        bool(<rec>)
        <int> in Vec(<int>, 3)
        <set>.issubset({1, 2, <int>})
        <set>.isdisjoint(<list>)
        {'a': 1}.items() <= <dict>.items() | 0.5
        isinstance(<rec>, (Vec, Point))
        issubclass(type(<obj>), C)
        all(i<#> is not None for i<#> in (<any.name>, <any.name>))
        torch.equal(<tensor>, <tensor>)
        <tensor>.requires_grad
        <tensor.name>.data_ptr() == <tensor.name>.data_ptr() | 0.3
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
        f'{<int>=}'
        f'{<float>:+.1e}'
        f'{<str>:*^7}|{<rec>}' | 1.5
        f'{<rec>!r:>12}'
        f"{f'{<int>}' + <str>!s:{<int> % 9}}"
        '%(a)s %(b)r' % {'a': <int>, 'b': <str>}
        <str>.join(['x', <str>])
        <str>.split('b')[0]
        <str>.center(5, '-')
        <str>.strip('a').title()
        str(finished([], <int>))
        ' '.join(sorted(<dict>, key=str))
        ''.join(itertools.repeat(<str>, 2))[:9]
        ''.join(map(chr, range(97, 97 + <int> % 4)))
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
        [*<list>, *<tuple>][:5]
        [(<int.new> := c<#> + <int>) for c<#> in (<list> or [1])]
        [c<#> if c<#> > 1 else <int> for c<#> in <list>]
        [[c<#>, j<#>][1] for c<#> in <list> for j<#> in range(c<#> % 3)][:6]
        [f<#>() for f<#> in [lambda c<#>=c<#>: c<#> for c<#> in <list>]]
        list(itertools.zip_longest(<list>, <list>, fillvalue=<int>))[:1]
        [sum(c<#>) for c<#> in itertools.combinations(<list>[:3], 2)]
        [c<#> for c<#>, _ in itertools.product(<list>[:2], <list>[:2])]
        [c<#> - j<#> for c<#>, j<#> in itertools.pairwise(<list>)]
        list(itertools.starmap(operator.add, zip(<list>, <list>)))
        list(itertools.compress(<list>, <list>))
        list(itertools.dropwhile(lambda c<#>: c<#> < <int>, <list>))
        [len(list(j<#>)) for _, j<#> in itertools.groupby(<list>)]
        list(itertools.accumulate(<list>, lambda c<#>, j<#>: max(c<#>, j<#>)))
        sorted(<list>, key=lambda c<#>: (-c<#>, <int>)) | 2
        sorted(<dict>.values(), key=repr)[:0]
        sorted(<list>, key=functools.cmp_to_key(lambda c<#>, j<#>: j<#> - c<#>))
        [c<#> for c<#> in nested(<int>, <list>)][:0]
        list(down(<int>))
        [*inside([], <int>)]
        list(<rec.name>)[:0]
        [c<#>.n for c<#> in sorted([<rec>, Vec(<int>), Vec(1, <int>)], key=abs)] | 0.4
        Both(<int>).what()[:0]
        list(<dict>.values())[:0]
        [len(i<#>) for i<#> in <dict> if isinstance(i<#>, str)]
        list({c<#>: None for c<#> in <list>})
        dict(sorted(Point(<int>).__dict__.items())).get('tags', [])
        [c<#>.n for c<#> in map(Point, <list>)]
        <list>[<int>::-1]
        [i<#>.item() for i<#> in <tensor>.reshape(-1)[:2]] | 0.3
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
        {**<dict>, **<dict>}
        dict(sorted(<dict>.items(), key=repr))
        {c<#>: i<#> for i<#>, c<#> in enumerate(<str>)}
        {k<#>: (v<#>, <int>)[1] for k<#>, v<#> in sorted(<dict>.items(), key=repr)}
        dataclasses.asdict(Point(<int>, <int>))
        vars(Both(<int>)).copy()
        {'t': <tensor>, 'n': <int>}
        {k<#>: list(v<#>) for k<#>, v<#> in itertools.groupby(sorted(<list>), key=lambda c<#>: str(c<#> % 2))}
        dict(collections.ChainMap(<dict>, {'b': <int>}))
        functools.reduce(lambda c<#>, j<#>: {**c<#>, str(j<#>): <int>}, <list>, {})
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
        tuple(<rec.name>)[:2]
        (*<list>, *<tuple>)[:4]
        dataclasses.astuple(Point(<int>))[:2]
        tuple(map(max, <list>, <list>))
        tuple(zip(*[<list>, <list>]))[:0]
        divmod(Vec(<int>), 2)
        spread(*<list>, *<tuple>, k=<int>)[:3]
        (<tensor>, <tensor>)
        tuple(itertools.islice(itertools.cycle(<list> or [1]), 3))
        next(zip(<list>, <list>), (0, 1))
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
        (<set>|<set>)
        <set> ^ {<int>}
        {c<#> for c<#> in <str>}
        {i<#> + <int> for i<#> in <set>}
        <set>.symmetric_difference(<list>)
        set(<dict>.keys() - {'a'})
        {Vec(<int>, 1), Vec(<int>, 1)}
        set(map(type, <list>)) and {1}
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
        functools.reduce(lambda c<#>, j<#>: c<#> + j<#>, <list>[:2], <obj>) | 0.5
        sorted([<obj>, <obj>])[0] | 0.5
        max(<obj>, <obj>, key=lambda c<#>: c<#>.n)
        <obj.name> | 10
        G_o
        C(<int>) | 3
        D(<int>, <list>) | 3
        <obj> + <int> | 1.5
        (<obj> if <bool> else <obj>)
        copy.copy(<obj>)
        <obj>.same()
        """),
    "fn": rules("""
        counter(<int>)[0]
        counter(<int>)[1]
        cached
        functools.lru_cache(lambda c<#>: c<#> + <int>) | 0.5
        functools.partial(catching, [], <fn>)
        functools.partial(max, <int>)
        functools.partial(finished, []) and C.twice
        Point(<int>).moved and abs
        operator.neg
        (lambda c<#>, *j<#>, i<#>=<int>, **k<#>: c<#> + i<#> + len(j<#>)) | 2
        <fn.name> | 7
        (lambda c<#>: c<#> + <int>) | 2
        (lambda c<#>: (change(<list.name>, c<#>), c<#>)[1])
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
        <co.name> | 2
        nested(<int>, <list>)
        down(<int>)
        inside([], <int>) | 0.3
        ((c<#>, j<#>)[0] for c<#> in <list> for j<#> in range(2) if c<#> != j<#>)
        itertools.starmap(operator.sub, zip(<list>, <list>))
        itertools.accumulate(<list>, <fn>) and iter(<list>)
        itertools.takewhile(lambda c<#>: c<#> < 3, <list>)
        itertools.cycle(<list> or [1])
        itertools.tee(<list>)[1]
        itertools.pairwise(<list>)
        itertools.chain(<list>, <gen>)
        (lambda: (yield from <list>))()
        iter(<fn.name>, <int>) and iter(<list>) | 0.3
        <gen.name> | 3
        (c<#> + <int> for c<#> in <list>) | 3
        iter(<list>) | 2
        iter(<tuple>)
        map(<fn>, <list>) | 2
        zip(<list>, <list>)
        enumerate(<list>)
        filter(None, <list>)
        pairs(<int>) | 0.5
        steps(<int>) | 2
        reversed(<list>)
        itertools.islice(itertools.count(<int>), 5)
        echo() | 1
        (c<#> for c<#> in <gen.name>)
        itertools.chain.from_iterable([<list>, <list>])
        """),
    "co": rules("""
        <co.name> | 5
        steps(<int>) | 3
        pairs(<int>) | 0.5
        guarded(<int>, <list>) | 0.3
        nested(<int>, <list>) | 3
        inside([], <int>) | 0.5
        echo()
        down(<int>)
        (c<#> + <int> for c<#> in <list>)
        (lambda c<#>: (yield c<#>))(<int>)
        """),
    "rec": rules("""
        <rec.name> | 6
        Vec(<int>, <int>) | 3
        Vec(<int>)
        <rec.name> + <rec.name> | 0.5
        Vec(<int>, 1) + Vec(1, <int>)
        <int> + Vec(<int>)
        <int> - Vec(1, <int>)
        Vec(<int>) * <int>
        -Vec(<int>, 2)
        Point(<int>) | 2
        Point(<int>, m=<int>, tags=<list>)
        Point(<int>).moved(<int>)
        Slots(<int>, <any>)
        Data(<int>, [<int>])
        Data(n=<int>, v=<list>, x=<tensor>)
        Both(<int>)
        Both(n=<int>, extra=<any>)
        (<rec> if <bool> else <rec>)
        copy.copy(Point(<int>))
        copy.copy(<rec.name>)
        types.SimpleNamespace(n=<int>, x=<tensor>)
        """),
    "tensor": rules("""
        tail(<tensor>)
        <tensor>.view(-1)[1:]
        <tensor>.unsqueeze(-1).squeeze(-1)
        <tensor>.flip(0)
        <tensor>.roll(1, 0)
        <tensor>.reshape(1, -1)
        <tensor>.masked_fill(<tensor> > <int>, 0) | 0.5
        <tensor>.sub_(<int>)
        <tensor>.view(-1).mul_(2)
        <tensor>.T.add_(<int>) | 0.5
        <tensor>.clone().fill_(<int>)
        torch.add(<tensor>, <tensor>, alpha=2)
        torch.lerp(<tensor>.float(), torch.ones(3), 0.5) | 0.4
        torch.minimum(<tensor>, torch.tensor(<int>))
        torch.einsum('i,i->', <tensor.name>.float().reshape(-1), <tensor.name>.float().reshape(-1)) | 0.3
        torch.nn.functional.softplus(<tensor>.float())
        torch.nn.functional.pad(<tensor>, (1, <int> % 3))
        torch.cat((<tensor>.reshape(-1), <tensor>.reshape(-1)))[:6]
        functools.reduce(torch.add, [<tensor>, <tensor>])
        sum([c<#> * <int> for c<#> in (<tensor>, <tensor>)])
        Both(extra=<tensor>).extra
        <dict.name>.setdefault('t', <tensor>) | 0.4
        catching([], torch.neg, <tensor>)
        <tensor>.std(unbiased=False) | 0.4
        <tensor>.sum().item() * <tensor> | 0.4
        <tensor>.var(0, keepdim=True) | 0.3
        <tensor>.norm() | 0.4
        <tensor>.prod().clamp(-9, 9)
        <tensor>.any(0) | 0.5
        <tensor>.int() | 0.5
        <tensor>.half() | 0.2
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
        (<tensor> == <tensor>)
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
    "any": [(f"<{kind}>", 1.0) for kind in KINDS if kind not in ("fn", "gen", "co")] + [("None", 1.0)],
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
    ("<int.name> += <int>", 2), ("<int.name> -= <int>", 1), ("<float.name> *= 0.5", 0.6), ("<any.name> = <any.name>", 0.1), ("del <any.name>", 0.5),
    ("<str.name> = (<str.name> + <str>)[-6:]", 0.6), ("<tuple.new> = (<tensor.name>, <tensor.name>, <list.name>)", 0.6), ("<any.name> = None", 0.1),
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
    ("jit.graph_break()", 1.5), ("print(<any>)", 1), ("print(<int>, <str>, sep='-')", 0.6), ("<float.new> = <tensor>.sum().item()", 0.6), ("off(<any>)", 0.8), ("<any.name> = off(<any>)", 0.1), ("<tensor.new> = off(<tensor>)", 0.5),
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
    # generators, records, blocks
    ('<co.new> = <co>', 3),
    ('<rec.new> = <rec>', 3),
    ('<co.name>.send(<int>)', 0.6),
    ('log.append(<co.name>.send(None))', 0.4),
    ('<co.name>.close()', 1),
    ("log.append(next(<co.name>, 'end'))", 2),
    ('try:\n    <co.name>.throw(ValueError(<int>))\nexcept (ValueError, StopIteration) as err:\n    log.append(repr(err))', 1),
    ("try:\n    <co.name>.throw(KeyError)\nexcept (KeyError, StopIteration):\n    log.append('thrown')\nfinally:\n    log.append(next(<co.name>, None))", 0.6),
    ("try:\n    while True:\n        log.append(<co.name>.send(<int>))\n        if len(log) > 9: break\nexcept (StopIteration, TypeError) as err:\n    log.append(getattr(err, 'value', None))", 0.6),
    ('def co_<#>(n):\n    r = yield n\n    r = (yield from steps(n)) or r\n    yield from nested(n, [r])\n    return n\n<co.new> = co_<#>(<int>)', 1),
    ('for i<#>, <int.new> in zip(range(3), <co.name>):\n<loop>', 0.8),
    ('with contextlib.closing(<co>) as co_<#>:\n    log.append(next(co_<#>, None))\n<block>', 0.6),
    ('with contextlib.ExitStack() as st_<#>:\n    st_<#>.enter_context(Scope(log, KeyError))\n    st_<#>.callback(log.append, <int>)\n<block>', 1),
    ('with contextlib.ExitStack() as st_<#>:\n    for i<#> in range(<int> % 3):\n        st_<#>.enter_context(managed(log))\n<block>', 0.6),
    ('with Vec(<int>) as <rec.new>:\n<block>', 0.8),
    ('with managed(log), contextlib.suppress(<exc>), Scope(log):\n<block>', 0.8),
    ('with torch.enable_grad(), torch.no_grad():\n<block>', 0.2),
    ('for <int.new> in range(3):\n    try:\n        if <bool>: continue\n<deep>\n    finally:\n        log.append(<int.name>)', 1),
    ("for <int.new> in <list>[:3]:\n    try:\n<deep>\n        if <bool>: break\n    except <exc>:\n        continue\n    finally:\n<deep>\nelse:\n    log.append('else')", 0.8),
    ('i<#> = 0\nwhile i<#> < 3:\n    i<#> += 1\n    try:\n<deep>\n    except <exc> as err:\n        log.append(repr(err))\n    else:\n        if <bool>: continue\n    finally:\n        log.append(i<#>)', 0.8),
    ('def h<#>(n):\n    try:\n        if n > <int>: return n\n        return n + <int>\n    finally:\n        log.append(n)\n<fn.new> = h<#>', 0.8),
    ('def h<#>(n, *rest, k=<int>, **kw):\n    for i in (n, *rest):\n        try:\n            return i // (k % 3)\n        except ZeroDivisionError:\n            k += 1\n            continue\n        finally:\n            log.append(k)\n<fn.new> = h<#>', 0.5),
    ('add<#>, get<#> = counter(<int>)\n<int.new> = add<#>(<int>) + add<#>()\nlog.append(get<#>())', 0.8),
    ('def h<#>(n=0):\n    nonlocal_<#> = [n]\n    def inner(m):\n        nonlocal n\n        n += m\n        nonlocal_<#>.append(n)\n        return n\n    return [inner(j) for j in <list>] and sum(nonlocal_<#>)\n<fn.new> = h<#>', 0.6),
    ('@functools.lru_cache(maxsize=None)\ndef h<#>(n):\n    log.append(n)\n    return n * 2 % 9\n<fn.new> = h<#>\nlog.append((h<#>(<int>), h<#>(<int>), h<#>.cache_info().hits))', 0.5),
    ('@dataclasses.dataclass\nclass R<#>:\n    n: int = <int>\n    v: list = dataclasses.field(default_factory=list)\n<rec.new> = R<#>(<int>)', 0.2),
    ('<rec.name>.n = <int>', 1.5),
    ('<rec.name>.n += <int>', 0.8),
    ('<rec.name> *= <int>', 0.2),
    ('<rec.name> += <rec.name>', 0.2),
    ('<rec>.extra = <any>', 0.3),
    ('del <rec.name>.n', 0.1),
    ("log.append((<rec>, f'{<rec.name>}'))", 0.5),
    ('<int.new>, <int.new> = Vec(<int>, <int>)', 0.8),
    ('<int.new>, *<list.new> = (<int>, *<list>)', 0.8),
    ('<list.new> = [*map(<fn>, <list>)]', 0.6),
    ('<tensor.new>, <list.new> = <tensor>, [<int>]', 0.5),
    ('match <rec>:\n    case Vec(a=0):\n<deep>\n    case Vec(a=<int.new>, b=1 | 2):\n<deep>\n    case Point(<int.new>, <int.new>) if <bool>:\n<deep>\n    case Data() | Slots():\n<deep>\n    case object(n=<int.new>):\n<deep>', 0.8),
    ('match <int>:\n    case 0:\n<deep>\n    case Shade.LIGHT:\n<deep>\n    case int(<int.new>) if <int.name> > 2:\n<deep>\n    case _:\n<deep>', 0.6),
    ("match <dict>:\n    case {'a': int(<int.new>), 'b': _}:\n<deep>\n    case {'t': torch.Tensor() as <tensor.new>}:\n<deep>\n    case {}:\n<deep>", 0.5),
    ('match (<any>, <any>):\n    case (str() as <str.new>, _):\n<deep>\n    case (int() | float(), [*_]):\n<deep>\n    case (_, None):\n<deep>', 0.5),
    ("while (<int.new> := <int>) > 5:\n    log.append('walrus')\n    break\nelse:\n    log.append('none')", 0.3),
    ('if any((<int.new> := c<#>) > 1 for c<#> in (<list> or [0])):\n<block>', 0.5),
    ("print(*<list>, sep=',', end=';')", 0.5),
    ("print(f'{<int>}', <rec>)", 0.4),
    ('<list.name>[:] = [c<#> % 7 for c<#> in <list.name>]', 0.5),
    ('<list.name>[1:1] = <list>[:2]', 0.4),
    ('<list.name> *= 1', 0.2),
    ('<dict.name>.setdefault(<key>, <int>)', 0.6),
    ('log.append(<dict.name>.pop(<key>, None))', 0.6),
    ('for <str.new> in list(<dict>):\n<loop>', 0.6),
    ('for k<#>, v<#> in sorted(<dict>.items(), key=repr):\n<loop>', 0.5),
    ("<dict.name>.update(a=<int>, **{'zz': <int>})", 0.4),
    ("<dict.name>['n'] = <dict.name>.get('n', 0) + <int>", 0.6),
    ("<dict.name>.move_to_end('a') if hasattr(<dict.name>, 'move_to_end') else None", 0.1),
    ('<set.name>.difference_update(<list>)', 0.4),
    ('<set.name> &= {1, 2, <int>}', 0.4),
    ('<set.name> ^= <set>', 0.3),
    ('log.append(len(<set.name>))', 0.4),
    ('<set.name>.intersection_update(<set>)', 0.3),
    ('<tensor.name>.sub_(<int>)', 0.5),
    ('<tensor.name>.view(-1)[1:].mul_(2)', 0.6),
    ('<tensor.name>.unsqueeze(0).add_(<int>)', 0.5),
    ('<tensor.name>[..., -1] = <int>', 0.5),
    ('<tensor.name>.T[0] += 1', 0.4),
    ('<tensor.name>.masked_fill_(<tensor.name> > <int>, 0)', 0.4),
    ('<tensor.name>.fill_(<int>)', 0.4),
    ('<tensor.new> = <tensor.name>[1:]\n<tensor.name>.add_(<int>)\nlog.append(<tensor.name>.sum())', 0.8),
    ('<tensor.new> = <tensor.name>.detach()\n<tensor.name>[0] = <int>', 0.5),
    ('<tensor.name>[::2] += <int>', 0.4),
    ('<tensor.name> -= <tensor>', 0.6),
    ('<tensor.name> = <tensor.name> * 2', 0.6),
    ('<tensor.new>, <tensor.new> = <tensor>.unbind(0)[:2]', 0.3),
    ('<tensor.name>, <tensor.name> = <tensor.name>, <tensor.name>', 0.5),
    ('<tensor.name>.data.add_(1)', 0.2),
    ('<list.new> = [<tensor>.sum().item() for _ in range(2)][:0]', 0.3),
    ('<int.new> = int(<tensor>.reshape(-1)[:1].sum().item())', 0.6),
    ('log.append(<fn>(<int>))', 1),
    ('log.append([*itertools.islice(<gen>, 3)])', 0.8),
    ('log.append(finished(log, <int>))', 0.6),
    ('log.append(catching(log, <fn>, <int>))', 0.8),
    ('catching(log, (lambda: {}[<key>]))', 0.3),
    ('catching(log, int, <str>)', 0.3),
    ('G_v.extend(nested(<int>))', 0.3),
    ('<obj.name>.x = <obj.name>.x + <int>', 0.5),
    ('<obj.name>.x[0] = <int>', 0.4),
    ('<obj.name>.v, <obj.name>.n = <list>, <int>', 0.4),
    ("log.append(operator.attrgetter('n', 'v')(<obj>))", 0.3),
    ('jit.graph_break()', 1.0),
]]
JUMPS = {"loop": [("break", 1), ("continue", 1), ("if <bool>: break", 2), ("if <bool>: continue", 2)],
         "def": [("return <out>", 1), ("if <bool>: return <out>", 2)],
         "gen": [("yield <int>", 5), ("<int.new> = yield <int>", 3), ("yield from <list>", 2), ("log.append((yield <int>))", 1), ("yield from <gen>", 1), ("return <int>", 0.5)]}
