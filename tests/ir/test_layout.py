"""Layouts against NumPy views: random chains of movement operators, with numbers and with named dimensions."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.ir import expr as ex
from workbench.ir import layout as lay
from workbench.ir.expr import Z, const, var
from workbench.ir.layout import Dim, Layout, Shape

DIMS = {"n": 3, "m": 4}


def size(d: Dim) -> int:
    return int(ex.evaluate(d, DIMS))


def elements(layout: Layout) -> np.ndarray:
    """What the layout reads of a buffer that holds its own addresses."""
    return lay.read(np.arange(600, dtype=np.int64), layout, DIMS)


@st.composite
def regrouped(draw: st.DrawFn, shape: Shape) -> Shape:
    """`shape` with neighbours merged, extents split, and ones added."""
    new: list[Dim] = []
    for d in shape:
        if new and draw(st.booleans()):
            new[-1] = ex.as_dim(ex.as_expr(new[-1]) * d)
            continue
        factors = [f for f in (2, 3) if isinstance(d, int) and d > f and d % f == 0]
        if factors and draw(st.booleans()):
            factor = draw(st.sampled_from(factors))
            new += draw(st.permutations([factor, d // factor]))  # type: ignore[operator]
        else:
            new.append(d)
        if draw(st.integers(0, 5)) == 0:
            new.append(1)
    return tuple(new)


def says_one_term_per_axis(address: np.ndarray) -> bool:
    """Whether addresses are a sum of one term for each axis."""
    origin = address[(0,) * address.ndim]
    total = np.zeros_like(address) + origin
    for axis in range(address.ndim):
        line = address[tuple(slice(None) if a == axis else slice(0, 1) for a in range(address.ndim))]
        total = total + line - origin
    return bool((total == address).all())


@st.composite
def moved(draw: st.DrawFn) -> tuple[Layout, np.ndarray]:
    """A layout after a few movement operators, and NumPy's array after the same ones."""
    symbolic = draw(st.booleans())
    extents: list[Dim] = [1, 2, 3, 4, 6, var("n"), var("m")] if symbolic else [1, 2, 3, 4, 6, 8]
    shape: Shape = tuple(draw(st.lists(st.sampled_from(extents), min_size=1, max_size=3)))
    layout = lay.contiguous(shape)
    array = np.arange(prod(map(size, shape)), dtype=np.int64).reshape([size(d) for d in shape])
    for _ in range(draw(st.integers(1, 6))):
        axis = draw(st.integers(0, max(0, layout.rank - 1)))
        match draw(st.sampled_from(("reshape", "reshape", "permute", "expand", "slice", "insert"))):
            case "reshape":
                wanted = draw(regrouped(layout.shape))
                after = lay.reshape(layout, wanted)
                result = array.reshape([size(d) for d in wanted])
                if after is None:
                    assert symbolic or not says_one_term_per_axis(result), f"{layout} as {wanted} can be said"
                    continue
                layout, array = after, result
            case "permute":
                axes = draw(st.permutations(range(layout.rank)))
                layout, array = lay.permute(layout, axes), array.transpose(axes)
            case "expand" if layout.rank < 5:
                target = [draw(st.integers(2, 3)) if d == 1 and draw(st.booleans()) else d for d in layout.shape]
                target = [2, *target] if draw(st.integers(0, 3)) == 0 else target
                layout, array = lay.expand(layout, tuple(target)), np.broadcast_to(array, [size(d) for d in target])
            case "slice" if layout.rank and size(layout.shape[axis]) > 0:
                extent = size(layout.shape[axis])
                start = draw(st.integers(0, extent - 1))
                step = draw(st.sampled_from((1, 1, 2, -1, -2)))
                most = (extent - 1 - start) // step + 1 if step > 0 else start // -step + 1
                count = draw(st.integers(1, most))
                stop = start + step * count
                layout = lay.slice_axis(layout, axis, start, step, count)
                cut = slice(start, stop if stop >= 0 else None, step)
                array = array[tuple(cut if a == axis else slice(None) for a in range(array.ndim))]
            case "insert" if layout.rank < 5:
                extent = draw(st.integers(1, 2))
                layout = lay.insert_axis(layout, axis, extent)
                array = np.repeat(np.expand_dims(array, axis), extent, axis)
    return layout, array


@settings(max_examples=100)
@given(moved())
def test_movement_operators_read_what_numpy_reads(case: tuple[Layout, np.ndarray]) -> None:
    layout, array = case
    assert tuple(size(d) for d in layout.shape) == array.shape
    assert (elements(layout) == array).all()
    assert (elements(lay.bind(layout, DIMS)) == array).all()


@settings(max_examples=100)
@given(moved())
def test_axes_of_extent_one_have_stride_zero(case: tuple[Layout, np.ndarray]) -> None:
    for layout in (case[0], lay.bind(case[0], DIMS), lay.bind(case[0], {"n": 1, "m": 1})):
        assert all(s is ex.ZERO for d, s in zip(layout.shape, layout.strides, strict=True) if d == 1)


@settings(max_examples=100)
@given(moved(), st.data())
def test_an_address_is_the_element_at_an_index(case: tuple[Layout, np.ndarray], data: st.DataObject) -> None:
    layout, array = case
    index = [data.draw(st.integers(0, n - 1)) for n in array.shape]
    at = lay.address(layout, [const(i) for i in index])
    assert ex.evaluate(at, DIMS) == array[tuple(index)]


def test_a_named_dimension_of_one_keeps_where_a_slice_began() -> None:
    wrapped = Layout((var("n"),), (ex.mod(Z + 1, const(4)) * 3,))
    assert elements(lay.bind(wrapped, {"n": 1})).tolist() == [3]
    assert lay.read(np.arange(20), wrapped, {"n": 1}).tolist() == [3]


def test_heads_that_were_joined_come_apart_again() -> None:
    """[heads, rows, depth] read as [rows, heads * depth] and back is an affine view."""
    heads = lay.permute(lay.contiguous((4, 16, 8)), (1, 0, 2))
    joined = lay.reshape(heads, (16, 32))
    assert joined is not None
    assert ex.coefficient_of(joined.strides[1], "z") is None
    assert lay.reshape(joined, (16, 4, 8)) == heads


def test_named_dimensions_split_and_merge() -> None:
    n = var("n")
    merged = lay.reshape(lay.contiguous((2, n, 8)), (2 * n, 8))
    assert merged is not None
    assert merged.is_contiguous
    assert lay.reshape(merged, (n, 2, 8)) == lay.contiguous((n, 2, 8))
    transposed = lay.permute(lay.contiguous((n, 8)), (1, 0))
    assert lay.reshape(transposed, (n, 8)) is None


def test_a_reshape_to_another_count_is_refused() -> None:
    with pytest.raises(ValueError, match="element counts differ"):
        lay.reshape(lay.contiguous((2, 3)), (7,))
    with pytest.raises(ValueError, match="element counts differ"):
        lay.reshape(lay.contiguous((var("n"), 3)), (var("m"), 3))


def test_a_broadcast_follows_numpys_rule() -> None:
    assert lay.expand(lay.contiguous((3, 1)), (2, 3, 4)).strides == (ex.ZERO, Z, ex.ZERO)
    for shape in ((3,), (2, 4), (4, 3)):
        with pytest.raises(ValueError, match="cannot broadcast"):
            lay.expand(lay.contiguous((2, 3)), shape)


@pytest.mark.parametrize(
    "layout",
    [
        Layout((4,), (Z,), const(3)),
        Layout((4,), (-Z,), const(2)),
        Layout((4,), (Z // 2 * 7,)),
        Layout((4,), (ex.ZERO,), const(6)),
        Layout((2,), (ex.mod(Z, const(2)) - 1,)),
    ],
    ids=str,
)
def test_reading_outside_the_buffer_is_refused(layout: Layout) -> None:
    with pytest.raises(IndexError, match="of 6 elements"):
        lay.read(np.arange(6), layout, {})


def test_empty_layouts_read_nothing() -> None:
    assert lay.read(np.arange(0), lay.contiguous((0, 3)), {}).shape == (0, 3)
    assert lay.numel((0, 3)) == 0
    assert lay.numel(()) == 1


@settings(max_examples=100)
@given(st.lists(st.integers(1, 4), max_size=4), st.data())
def test_a_position_unflattens_to_its_index(shape: list[int], data: st.DataObject) -> None:
    flat = data.draw(st.integers(0, prod(shape) - 1))
    index = lay.unflatten(var("#0"), shape, {"#0": prod(shape)})
    found = [ex.evaluate(i, {"#0": flat}) for i in index]
    assert found == [int(i) for i in np.unravel_index(flat, shape)] if shape else found == []
