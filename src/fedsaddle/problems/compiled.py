"""Functions of tensors compiled by TorchInductor, for the shapes they are called with.

Tracing runs the function once and records what reaches the tensors, so gradients, `torch.vmap` and
`Stack` leave no trace in the program. Compiled code is kept on disk: the next run starts at once.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedsaddle.problems import cache
from fedsaddle.problems.stack import for_compiler

Program = Callable[..., Any]
OPTIONS = {"cpp_wrapper": True, "cpp_wrapper_build_separate": True, "compile_threads": 1}
"""Calls between kernels are compiled too: a step may be as short as a fifth of a millisecond. They
are a file of their own, which need not be optimised as kernels are: for a network of hundreds of
layers that alone would take minutes. Two files are no work for several threads."""


def can_compile() -> bool:
    """Whether there is a C++ compiler, which TorchInductor needs on a CPU."""
    return cache.compiler() is not None


def compiled(
    function: Callable[..., Any], examples: Sequence[Tensor], accumulate: int = 0
) -> Program:
    """The function for tensors of just these shapes, contiguous ones.

    With `accumulate`, its results are added to the last so many of the tensors, in place.
    """
    import torch._functorch.config
    import torch._inductor
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    folder = cache.folder()
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") in (None, default_cache_dir()):  # not the user's
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    with for_compiler():
        graph = make_fx(function)(*examples)
    products = _leave_products(graph, accumulate) if accumulate else []
    _copy_where_strides_want_it(graph)
    name = hashlib.sha256(f"{graph.graph}{torch.__version__}".encode()).hexdigest()[:16]
    # TorchInductor keeps whole programs, and not just their parts, where shapes have a keeper
    shapes = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    inner: list[Any] = []

    def note(*arguments: Any, **named: Any) -> Any:
        inner.append(compile_fx_inner(*arguments, **named))
        return inner[-1]

    with (
        cache.alone(folder / f"{name}.lock"),
        torch.no_grad(),
        tracing(TracingContext(shapes)),
        torch._functorch.config.patch(enable_autograd_cache=False),  # it would pass `note` by
    ):
        options = OPTIONS | _vectors(graph)
        program: Any = compile_fx(graph, list(examples), note, config_patches=options)
        expected = program(*examples)  # compiling ends here, with the first call
        if len(inner) == 1 and _same(inner[0](list(examples)), expected):
            program = _Direct(inner[0].current_callable)
    return partial(_add_results, program, products) if accumulate else program


def _vectors(graph: Any) -> dict[str, Any]:
    """Vectors of 8 numbers, not 16, where a picture's channels end in the middle of one.

    There TorchInductor goes on number by number, which takes half as long again as all the rest.
    """
    convolution = torch.ops.aten.convolution.default
    pictures = graph.graph.find_nodes(op="call_function", target=convolution)
    halved = any(node.meta["val"].shape[1] % 16 == 8 for node in pictures)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return {"cpp.simdlen": 256} if wide and halved else {}


class _Direct:
    """A program without what TorchInductor wraps around it, for programs that need nothing of it:
    no gradients, no changes of inputs. That takes a tenth of the time of a short step."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def __call__(self, *tensors: Tensor) -> Any:
        return self._program([*tensors])


def _same(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    pairs = zip(results, expected, strict=False)
    return len(results) == len(expected) and all(
        a.shape == b.shape and a.stride() == b.stride() and a.allclose(b, equal_nan=True)
        for a, b in pairs
    )


def _leave_products(graph: Any, accumulate: int) -> list[list[int] | None]:
    """Makes the graph give the factors of results that are products of matrices.

    Those are added to something: to a matrix in place, a product can be added in the making. For
    each result, the product's shape, or None.
    """
    ops = torch.ops.aten
    targets = graph.graph.find_nodes(op="placeholder")[-accumulate:]
    (output,) = graph.graph.find_nodes(op="output")
    given: list[Any] = []
    shapes: list[list[int] | None] = []

    def source(node: Any) -> Any:
        return source(node.args[0]) if getattr(node.target, "is_view", False) else node

    for result in output.args[0]:
        product = result
        while product.target is ops.view.default:
            product = product.args[0]
        factors = product.args if product.target is ops.bmm.default else ()
        # a factor that is itself added to may no longer be what it was
        left = factors and not any(source(factor) in targets for factor in factors)
        given += factors if left else [result]
        shapes.append([*product.meta["val"].shape] if left else None)
    output.args = (tuple(given),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return shapes


def _copy_where_strides_want_it(graph: Any) -> None:
    """TorchInductor may lay out a tensor in another order than it had when the graph was traced: a
    convolution's gradient at a single pixel. What was a view then may have to be a copy."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    graph.recompile()


def _add_results(program: Program, products: Sequence[list[int] | None], *tensors: Tensor) -> None:
    results = iter(program(*tensors))
    others, sums = [], []
    for target, shape in zip(tensors[-len(products) :], products, strict=True):
        if shape is None:
            others.append(target)
            sums.append(next(results))
        else:
            target.view(shape).baddbmm_(next(results), next(results))
    if others:
        torch._foreach_add_(others, sums)
