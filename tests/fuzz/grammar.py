"""The grammar of random programs: templates of expressions by kind of value. Those of statements are in
``statements.py``.

A hole ``<kind>`` is an expression, ``<kind.name>`` a variable that is set, ``<kind.new>`` one to be set; ``<block>``
and ``<loop>`` (where ``break`` and ``continue`` may stand) are nested statements, ``<pass>`` a single one; ``<#>`` a
number that is new in each use. A weight is the last entry. What could grow without bound in a loop (``v += v``) is
written so that it cannot: programs have to end. Decisions are made of rounded numbers: where eager and a graph differ
in the last digit of a sum, that says nothing about either.
"""

from __future__ import annotations

NAMES = {  # variables by the kind of value that they mostly hold
    "int": ("n", "k", "m"), "float": ("a", "b"), "tensor": ("x", "y", "z"), "list": ("v", "w"), "dict": ("d", "e"),
    "str": ("s", "r"), "tuple": ("t", "q"), "set": ("u",), "obj": ("o", "l"), "fn": ("g", "h"), "gen": ("it",),
    "bool": ("c",), "co": ("co",), "rec": ("rec", "p"),
}
KINDS = tuple(NAMES)
NAMES["sub"] = ("sa", "sb")  # of a theme only: tensors of other classes
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
        round(<tensor>.sum().item())
        int(<tensor>.sum().round())
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
        round(<tensor>.sum().item(), 4) | 0.6
        round(<tensor>.mean().item(), 4) | 0.3
        round(float(np.abs(<tensor>.numpy()).sum()), 4) | 0.3
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
        <tensor>.sum() > <int> + 0.3
        (<tensor>.sum() > <int> + 0.3).item()
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
        itertools.islice(itertools.cycle(<list> or [1]), 6)
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
        torch.from_numpy(np.tanh(<tensor>.float().numpy())) | 0.4
        torch.as_tensor(<tensor>.numpy() * 2 + <int>) | 0.4
        torch.as_tensor(np.cumsum(np.maximum(<tensor>.numpy(), <int>), axis=-1)) | 0.3
        torch.tensor(np.array([<int>, <int>, <int>])) | 0.3
        torch.from_numpy(np.concatenate([<tensor>.numpy(), <tensor>.numpy()]))[:6] | 0.3
        torch.as_tensor(<tensor>.numpy().mean()) | 0.3
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
