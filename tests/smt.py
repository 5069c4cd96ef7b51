"""Rewrite rules over the real numbers, by an SMT solver: for all values of all elements, not for some.

usage: smt.py FUSEBOX

Each graph below makes one rule fire. `fusebox story` prints it as written and improved, with several choices among the
forms; z3 is asked for elements of which the two differ. Sizes are those of the graph, a few positions an axis. Of
`exp`, `recip` and their kind nothing is known but that equal numbers have equal results. Infinities, NaN and rounding
are not there: `rewrite::check` tries those. Without z3 (the package z3-solver of PyPI) it says `skipped:`.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import z3
except ImportError:
    print("skipped: there is no z3 for Python: pip install z3-solver")
    sys.exit(0)

# How many choices among forms are tried.
N_CHOICES = 8

GRAPHS = {
    "constant-fold": """%0 = const 3.0
%1 = const 4.0
%2 = mul %0 %1
%3 = input x : f32[t:2]
%4 = mul %3 %2
output y = %4""",
    "factor-fold": """%0 = const 3.0
%1 = input x : f32[t:3]
%2 = mul %1 %0
%3 = mul %2 %0
output y = %3""",
    "binary-drop-neutral": """%0 = const 1.0
%1 = input x : f32[t:3]
%2 = div %1 %0
output y = %2""",
    "select-known": """%0 = iota s:3
%1 = const 2 : i32
%2 = le %0 %1
%3 = input x : f32[s:3]
%4 = const 7.0
%5 = select %2 %3 %4
output y = %5""",
    "binary-drop-expand": """%0 = input q : f32[t:2, h:2]
%1 = reduce-sum %0 over h
%2 = expand %1 h:2
%3 = add %0 %2
output y = %3""",
    "contract-drop-expand": """%0 = input q : f32[t:2, h:2, e:2]
%1 = input k : f32[s:2, e:2]
%2 = expand %1 h:2
%3 = contract %0 %2 over [e]
output y = %3""",
    "reduce-mul-to-contract": """%0 = input a : f32[t:2, k:3]
%1 = input b : f32[t:2, k:3]
%2 = mul %0 %1
%3 = reduce-sum %2 over k
output y = %3""",
    "contract-reassociate": """%0 = input q : f32[t:2, h:2, e:2]
%1 = input low : f32[s:3, c:2]
%2 = input w : f32[h:2, c:2, e:2]
%3 = contract %1 %2 over [c]
%4 = contract %0 %3 over [e]
output y = %4""",
    "contract-merge-nested": """%0 = input weight : f32[t:2, k:2]
%1 = input h : f32[t:2, k:2, f:3]
%2 = input w : f32[t:2, k:2, d:2, f:3]
%3 = contract %1 %2 over [f]
%4 = contract %0 %3 over [k]
output y = %4""",
    "contract-hoist-scale": """%0 = input x : f32[t:2, d:3]
%1 = mul %0 %0
%2 = reduce-sum %1 over d
%3 = rsqrt %2
%4 = mul %0 %3
%5 = input w : f32[h:2, d:3]
%6 = contract %4 %5 over [d]
%7 = reduce-max %0 over d
%8 = div %0 %7
%9 = contract %8 %5 over [d]
output y = %6
output z = %9""",
    "contract-split-concat": """%0 = input a : f32[t:2, e:2]
%1 = input b : f32[t:2, e:1]
%2 = concat %0 %1 along e
%3 = input c : f32[s:2, e:2]
%4 = input d : f32[s:2, e:1]
%5 = concat %3 %4 along e
%6 = contract %2 %5 over [e]
output y = %6""",
    "contract-join-slices": """%0 = input u : f32[s:2, c:3]
%1 = slice %0 c at 0 len 2
%2 = slice %0 c at 2 len 1
%3 = rename %2 c to e
%4 = input x : f32[t:2, c:2]
%5 = input y : f32[t:2, e:1]
%6 = contract %4 %1 over [c]
%7 = contract %5 %3 over [e]
%8 = add %6 %7
output y = %8""",
    "contract-move-operand": """%0 = input x : f32[t:2, d:2]
%1 = weight w : f32[m:4, d:2]
%2 = contract %0 %1 over [d]
%3 = split %2 m into [h:2, e:2]
%4 = input k : f32[h:2, e:2]
%5 = contract %3 %4 over [e]
output y = %5""",
    "contract-unmerge-axis": """%0 = input x : f32[t:2, h:2, e:2]
%1 = weight w : f32[d:2, m:4]
%2 = merge %0 [h, e] into m
%3 = contract %2 %1 over [m]
output y = %3""",
    "contract-one-hot-gather": """%0 = input liking : f32[t:2, x:3]
%1 = top-k %0 x into k:2
%2 = iota x:3
%3 = eq %1 %2
%4 = cast %3 f32
%5 = input rows : f32[t:2, x:3, d:2]
%6 = contract %4 %5 over [x]
output y = %6""",
    "gather-through-contract": """%1 = input picked : i32[t:2, k:2]
%2 = input h : f32[t:2, d:2]
%3 = weight w : f32[x:3, f:2, d:2]
%4 = contract %2 %3 over [d]
%5 = gather %4 %1 along x
output y = %5""",
    "gather-through-elementwise": """%1 = input picked : i32[t:2, k:2]
%2 = input h : f32[t:2, x:3]
%3 = exp %2
%4 = gather %3 %1 along x
output y = %4""",
    "attend-from-softmax": """%0 = input x : f32[t:2, s:3]
%1 = reduce-max %0 over s
%2 = sub %0 %1
%3 = exp %2
%4 = reduce-sum %3 over s
%5 = div %3 %4
%6 = input v : f32[s:3, e:2]
%7 = contract %5 %6 over [s]
output y = %7""",
}


class Tensor:
    """Elements by their positions along named axes."""

    def __init__(self, axes, element):
        self.axes = axes
        ranges = [range(size) for _, size in axes]
        self.elements = {at: element(dict(zip(self.names(), at))) for at in itertools.product(*ranges)}

    def names(self):
        return [name for name, _ in self.axes]

    def __getitem__(self, at):
        return self.elements[tuple(at[name] for name in self.names())]


def merged(*tensors):
    axes = {}
    for tensor in tensors:
        axes.update({name: size for name, size in tensor.axes if name not in axes})
    return list(axes.items())


def largest(terms):
    result = terms[0]
    for term in terms[1:]:
        result = z3.If(term > result, term, result)
    return result


class Evaluator:
    """What a graph means, of elements that are any real numbers."""

    def __init__(self, inputs, functions):
        self.inputs, self.functions, self.values = inputs, functions, {}

    def given(self, name, axes):
        if name not in self.inputs:
            self.inputs[name] = Tensor(axes, lambda at: z3.Real("_".join([name, *map(str, at.values())])))
        return self.inputs[name]

    def function(self, name, argument):
        """Of an argument in one form, so that equal arguments are seen to be equal."""
        if name not in self.functions:
            self.functions[name] = z3.Function(name, z3.RealSort(), z3.RealSort())
        return self.functions[name](z3.simplify(argument, som=True))

    def quotient(self, a, b):
        b = z3.simplify(b, som=True)
        return a / b if z3.is_rational_value(b) else a * self.function("recip", b)

    def binary(self, name, a, b):
        one, zero = z3.RealVal(1), z3.RealVal(0)
        of = {
            "add": lambda: a + b,
            "sub": lambda: a - b,
            "mul": lambda: a * b,
            "div": lambda: self.quotient(a, b),
            "max": lambda: largest([a, b]),
            "lt": lambda: z3.If(a < b, one, zero),
            "le": lambda: z3.If(a <= b, one, zero),
            "eq": lambda: z3.If(a == b, one, zero),
        }
        return of[name]()

    def attend(self, scores, values, over):
        axes = [(name, size) for name, size in merged(scores, values) if name not in over]
        sizes = dict(merged(scores, values))
        places = [dict(zip(over, at)) for at in itertools.product(*(range(sizes[name]) for name in over))]

        def element(at):
            own = [scores[{**at, **place}] for place in places]
            weights = [self.function("exp", score - largest(own)) for score in own]
            terms = [weight * values[{**at, **place}] for weight, place in zip(weights, places)]
            return self.quotient(z3.Sum(terms), z3.Sum(weights))

        return Tensor(axes, element)

    def ranks(self, x, axis, into, n):
        """The positions of the largest, the first of equal ones first."""
        size = dict(x.axes)[axis]

        def element(at):
            def n_before(place):
                own = x[{**at, axis: place}]
                others = [(other, x[{**at, axis: other}]) for other in range(size) if other != place]
                return z3.Sum([z3.If(z3.Or(v > own, z3.And(v == own, other < place)), 1, 0) for other, v in others])

            found = [z3.If(n_before(place) == at[into], place, 0) for place in range(size)]
            return z3.ToReal(z3.Sum(found))

        return Tensor([(name, size) for name, size in x.axes if name != axis] + [(into, n)], element)

    def gather(self, table, index, axis):
        axes = [pair for pair in merged(index, table) if pair[0] != axis]
        size = dict(table.axes)[axis]

        def element(at):
            number, result = index[at], table[{**at, axis: 0}]
            for place in range(1, size):
                result = z3.If(number >= place, table[{**at, axis: place}], result)
            return result

        return Tensor(axes, element)

    def node(self, text):
        name, _, rest = text.partition(" ")
        args = [self.values[id] for id in re.findall(r"%\d+", rest)]
        words = re.sub(r"%\d+", "", rest).split("#")[0].strip()
        dims = [(axis, int(size)) for axis, size in re.findall(r"([\w.]+):(\d+)", words)]
        if name in ("input", "weight"):
            return self.given(words.split()[0], dims)
        if name == "const":
            return Tensor([], lambda _: z3.RealVal(words.split()[0]))
        if name == "iota":
            return Tensor(dims, lambda at: z3.RealVal(at[dims[0][0]]))
        if name in ("neg", "recip", "exp", "rsqrt", "sqrt", "ln", "sin", "cos"):
            apply = {"neg": lambda a: -a, "recip": lambda a: self.quotient(z3.RealVal(1), a)}
            own = apply.get(name, lambda a: self.function(name, a))
            return Tensor(args[0].axes, lambda at: own(args[0][at]))
        if len(args) == 2 and name in ("add", "sub", "mul", "div", "max", "lt", "le", "eq"):
            return Tensor(merged(*args), lambda at: self.binary(name, args[0][at], args[1][at]))
        if name == "select":
            return Tensor(merged(*args), lambda at: z3.If(args[0][at] != 0, args[1][at], args[2][at]))
        if name in ("cast", "barrier"):
            return args[0]
        if name in ("reduce-sum", "reduce-max"):
            axis = words.split()[-1]
            size, fold = dict(args[0].axes)[axis], z3.Sum if name == "reduce-sum" else largest
            axes = [pair for pair in args[0].axes if pair[0] != axis]
            return Tensor(axes, lambda at: fold([args[0][{**at, axis: place}] for place in range(size)]))
        over = re.findall(r"[\w.]+", words.partition("[")[2].partition("]")[0])
        if name == "contract":
            sizes = dict(merged(*args))
            places = [dict(zip(over, at)) for at in itertools.product(*(range(sizes[axis]) for axis in over))]
            axes = [pair for pair in merged(*args) if pair[0] not in over]
            return Tensor(axes, lambda at: z3.Sum([args[0][{**at, **p}] * args[1][{**at, **p}] for p in places]))
        if name == "attend" and len(args) == 2:
            return self.attend(*args, over)
        if name == "top-k":
            return self.ranks(args[0], words.split()[0], *dims[0])
        if name == "gather":
            return self.gather(*args, words.split()[-1])
        if name == "rename":
            old, new = re.match(r"(\S+) to (\S+)", words).groups()
            axes = [(new if axis == old else axis, size) for axis, size in args[0].axes]
            return Tensor(axes, lambda at: args[0][{**at, old: at[new]}])
        if name == "expand":
            return Tensor(args[0].axes + dims, lambda at: args[0][at])
        if name == "slice":
            axis, start, n = re.match(r"(\S+) at (\d+) len (\d+)", words).groups()
            axes = [(own, int(n) if own == axis else size) for own, size in args[0].axes]
            return Tensor(axes, lambda at: args[0][{**at, axis: at[axis] + int(start)}])
        if name == "concat":
            axis = words.split()[-1]
            parts = [(part, place) for part in args for place in range(dict(part.axes)[axis])]
            axes = [(own, len(parts) if own == axis else size) for own, size in args[0].axes]
            return Tensor(axes, lambda at: parts[at[axis]][0][{**at, axis: parts[at[axis]][1]}])
        if name in ("split", "merge"):
            return self.regrouped(name, args[0], words, dims, over)
        raise ValueError(f"smt.py does not know {text}")

    @staticmethod
    def regrouped(name, x, words, dims, over):
        def number(at, axes):
            result = 0
            for axis, size in axes:
                result = result * size + at[axis]
            return result

        def places(number, axes):
            at = {}
            for axis, size in reversed(axes):
                at[axis], number = number % size, number // size
            return at

        if name == "split":
            axis = words.split()[0]
            axes = [pair for own in x.axes for pair in (dims if own[0] == axis else [own])]
            return Tensor(axes, lambda at: x[{**at, axis: number(at, dims)}])
        into, parts = words.split()[-1], [(axis, dict(x.axes)[axis]) for axis in over]
        size = number({axis: size - 1 for axis, size in parts}, parts) + 1
        axes = [pair for pair in x.axes if pair[0] not in over] + [(into, size)]
        return Tensor(axes, lambda at: x[{**at, **places(at[into], parts)}])

    def outputs(self, text):
        outputs = {}
        for line in text.splitlines():
            if found := re.match(r"(%\d+) = (.*)", line.strip()):
                self.values[found[1]] = self.node(found[2])
            elif found := re.match(r"output (\S+) = (%\d+)", line):
                outputs[found[1]] = self.values[found[2]]
        return outputs


def difference(written, improved):
    """Elements of which two graphs give different results, if there are any."""
    inputs, functions = {}, {}
    before, after = (Evaluator(inputs, functions).outputs(text) for text in (written, improved))
    for name, own in before.items():
        for at in own.elements:
            at = dict(zip(own.names(), at))
            solver = z3.Solver()
            solver.set("timeout", 60_000)
            solver.add(z3.simplify(own[at] - after[name][at], som=True) != 0)
            found = solver.check()
            if found != z3.unsat:
                why = solver.model() if found == z3.sat else solver.reason_unknown()
                return f"element {at} of {name}, {found}: {why}"
    return None


def main():
    command, n_forms = Path(sys.argv[1]).resolve(), 0
    with tempfile.TemporaryDirectory(prefix="fusebox-smt-") as folder:
        for rule, graph in GRAPHS.items():
            file, forms, fired = Path(folder) / "rule.graph", set(), set()
            file.write_text(graph)
            for seed in [None, *range(N_CHOICES)]:
                env = {**os.environ, "FUSEBOX_CHAOS": "" if seed is None else str(seed)}
                if seed is None:
                    env.pop("FUSEBOX_CHAOS")
                told = subprocess.run([command, "story", file], env=env, capture_output=True, text=True, check=True)
                told = told.stdout
                fired |= set(re.findall(r"([\w-]+) ×\d", told))
                improved = told.partition("## 2. improved")[2].partition("## 3.")[0]
                forms.add("\n".join(line for line in improved.splitlines() if re.match(r" *(%|output)", line)))
            assert rule in fired, f"{rule} did not fire on its graph, {sorted(fired)} did"
            for form in forms:
                what = difference(graph, form)
                assert what is None, f"{rule}: {what}\n{graph}\nbecame\n{form}"
            n_forms += len(forms)
            print(f"{rule}: {len(forms)} form{'s' * (len(forms) != 1)}", flush=True)
    # What is false is found false.
    wrong = GRAPHS["factor-fold"].replace("%3 = mul %2 %0", "%3 = add %2 %0")
    assert difference(GRAPHS["factor-fold"], wrong), "a sum passes for a product"
    print(f"{len(GRAPHS)} rules, {n_forms} forms are equal for all real numbers")


if __name__ == "__main__":
    main()
