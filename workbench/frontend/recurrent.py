"""Recurrent layers, unrolled over a sequence whose length is known.

The equations are those of the operators' specifications (onnx.ai/onnx/operators/onnx__LSTM.html and beside it)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.frontend import arithmetic as ar
from workbench.frontend import elementwise as el
from workbench.frontend.builder import Builder
from workbench.frontend.contraction import contract
from workbench.frontend.movement import concat
from workbench.frontend.registry import operator
from workbench.frontend.values import NotLoweredError, Value, dtype_of, fixed, shape_of
from workbench.ir.layout import Dim

Activation = Callable[[Builder, Value], Value]
State = tuple[Value, ...]
Step = Callable[["Direction", Value, State], State]
"""The next state from a direction's weights, the step's input [batch, gates*hidden], and the state before."""


_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction's weights: `recurrent` [gates*hidden, hidden], its bias [gates*hidden], peepholes [3*hidden]."""

    b: Builder
    hidden: Dim
    recurrent: Value
    bias: Value | None
    peepholes: Value | None
    activations: Sequence[Activation]
    clip: float

    def activate(self, which: int, x: Value) -> Value:
        """The `which`-th activation of `x`, which is clipped first."""
        if self.clip:
            x = el.clip(self.b, x, self.b.like(-self.clip, x), self.b.like(self.clip, x))
        return self.activations[which](self.b, x)

    def part(self, x: Value, gate: int) -> Value:
        """What belongs to `gate` along the last axis of `x`."""
        axis = len(shape_of(x)) - 1
        start = self.hidden * gate
        return self.b.slice(x, axis, start, 1, self.hidden)

    def product(self, x: Value, gate: int | None = None) -> Value:
        """`x` times the recurrent weights (of one gate), plus their bias."""
        weights, bias = self.recurrent, self.bias
        if gate is not None:
            weights = self.b.slice(weights, 0, self.hidden * gate, 1, self.hidden)
            bias = None if bias is None else self.part(bias, gate)
        y = contract(self.b, x, weights)
        return y if bias is None else self.b.add(y, bias)


_ALPHA = {"LeakyRelu": 0.01, "Elu": 1.0, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Affine": 1.0, "ScaledTanh": 1.0}
_BETA = {"HardSigmoid": 0.5, "Affine": 0.0, "ScaledTanh": 1.0}


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    alpha = next(alphas, _ALPHA[name]) if name in _ALPHA else 0.0
    beta = next(betas, _BETA[name]) if name in _BETA else 0.0
    match name:
        case "Sigmoid":
            return ar.sigmoid
        case "Tanh":
            return ar.tanh
        case "Relu":
            return el.relu
        case "Softsign":
            return el.softsign
        case "Softplus":
            return el.softplus
        case "LeakyRelu":
            return lambda b, x: el.leaky_relu(b, x, alpha=alpha)
        case "Elu":
            return lambda b, x: el.elu(b, x, alpha=alpha)
        case "ThresholdedRelu":
            return lambda b, x: el.thresholded_relu(b, x, alpha=alpha)
        case "HardSigmoid":
            return lambda b, x: el.hard_sigmoid(b, x, alpha=alpha, beta=beta)
        case "Affine":
            return lambda b, x: b.add(b.mul(x, alpha), beta)
        case "ScaledTanh":
            return lambda b, x: b.mul(ar.tanh(b, b.mul(x, beta)), alpha)
    raise NotLoweredError(f"the activation '{name}'")


@dataclass(frozen=True, slots=True)
class Layer:
    """What the three recurrent operators have in common. `gates` per direction; `step` is one step's equations."""

    gates: int
    step: Step
    default_activations: tuple[str, ...]
    direction: str
    activations: list[str] | None
    alpha: list[float] | None
    beta: list[float] | None
    clip: float
    layout: int

    def run(
        self,
        b: Builder,
        x: Value,
        weights: Value,
        recurrent: Value,
        bias: Value | None,
        lengths: Value | None,
        initial: Sequence[Value | None],
        peepholes: Value | None = None,
    ) -> tuple[Value, ...]:
        """The output of every step, then the last state's parts, each with an axis for the directions."""
        if self.layout:
            x = b.transpose(x, [1, 0, 2])
            initial = [None if s is None else b.transpose(s, [1, 0, 2]) for s in initial]
        count = fixed(shape_of(weights)[0], "the number of directions")
        if count != (2 if self.direction == "bidirectional" else 1):
            raise ValueError(f"weights for {count} directions of a layer that is {self.direction}")
        names = self.activations or [*self.default_activations] * count
        alphas, betas = iter(self.alpha or ()), iter(self.beta or ())
        functions = [_activation(name, alphas, betas) for name in names]
        if len(functions) != count * len(self.default_activations):
            raise ValueError(f"{len(functions)} activations")
        outputs: list[Value] = []
        ends: list[State] = []
        hidden = shape_of(recurrent)[2]
        for way in range(count):
            per = len(self.default_activations)
            w, r = (_way(b, m, way) for m in (weights, recurrent))
            biases = None if bias is None else b.reshape(_way(b, bias, way), (2, self.gates * hidden))
            both = None if biases is None else [b.reshape(_way(b, biases, i), (self.gates * hidden,)) for i in (0, 1)]
            given = contract(b, x, w) if both is None else b.add(contract(b, x, w), both[0])
            direction = Direction(
                b,
                hidden,
                r,
                None if both is None else both[1],
                None if peepholes is None else _way(b, peepholes, way),
                functions[way * per : (way + 1) * per],
                self.clip,
            )
            zero = b.expand(np.zeros((), dtype_of(x)), (shape_of(x)[1], hidden))
            start = tuple(zero if s is None else _way(b, s, way) for s in initial)
            backward = self.direction == "reverse" or way == 1
            steps, end = self._unrolled(direction, given, start, lengths, backward)
            outputs.append(steps)
            ends.append(end)
        y = concat(b, *(b.unsqueeze(o, [1]) for o in outputs), axis=1)
        last = [concat(b, *(b.unsqueeze(s, [0]) for s in parts), axis=0) for parts in zip(*ends, strict=True)]
        if self.layout:
            return b.transpose(y, [2, 0, 1, 3]), *(b.transpose(s, [1, 0, 2]) for s in last)
        return y, *last

    def _unrolled(
        self, direction: Direction, given: Value, state: State, lengths: Value | None, backward: bool
    ) -> tuple[Value, State]:
        b = direction.b
        count, batch, width = shape_of(given)
        steps = range(fixed(count, "the length of a sequence"))
        if not 0 < len(steps) <= _MOST_STEPS:
            raise NotLoweredError(f"a sequence of {len(steps)} steps; 1 to {_MOST_STEPS} are unrolled")
        outputs: dict[int, Value] = {}
        for t in reversed(steps) if backward else steps:
            now = b.reshape(b.slice(given, 0, t, 1, 1), (batch, width))
            new = self.step(direction, now, state)
            if lengths is not None:  # past its end a sequence keeps its state, and its outputs are 0
                alive = b.reshape(b.less(b.like(t, lengths), lengths), (batch, 1))
                new = tuple(b.select(alive, n, s) for n, s in zip(new, state, strict=True))
                outputs[t] = b.select(alive, new[0], 0)
            else:
                outputs[t] = new[0]
            state = new
        return concat(b, *(b.unsqueeze(outputs[t], [0]) for t in steps), axis=0), state


def _way(b: Builder, x: Value, way: int) -> Value:
    """Element `way` of the first axis."""
    return b.reshape(b.slice(x, 0, way, 1, 1), shape_of(x)[1:])


def _rnn_step(d: Direction, x: Value, state: State) -> State:
    return (d.activate(0, d.b.add(x, d.product(state[0]))),)


@operator("RNN", since=7)
def rnn(
    b: Builder,
    x: Value,
    weights: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    initial: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    layout: int = 0,
) -> tuple[Value, ...]:
    layer = Layer(
        1, _rnn_step, ("Tanh",), direction, activations, activation_alpha, activation_beta, clip, layout
    )
    return layer.run(b, x, weights, recurrent, bias, lengths, [initial])


def _gru_step(d: Direction, x: Value, state: State, reset_after: bool) -> State:
    """Gates in the order update, reset, hidden."""
    b, before = d.b, state[0]
    gates = [d.activate(0, b.add(d.part(x, gate), d.product(before, gate))) for gate in (0, 1)]
    update, reset = gates
    inner = b.mul(reset, d.product(before, 2)) if reset_after else d.product(b.mul(reset, before), 2)
    hidden = d.activate(1, b.add(d.part(x, 2), inner))
    return (b.add(b.mul(ar.sub(b, 1.0, update), hidden), b.mul(update, before)),)


@operator("GRU", since=7)
def gru(
    b: Builder,
    x: Value,
    weights: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    initial: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Value, ...]:
    def step(d: Direction, now: Value, state: State) -> State:
        return _gru_step(d, now, state, bool(linear_before_reset))

    layer = Layer(
        3, step, ("Sigmoid", "Tanh"), direction, activations, activation_alpha, activation_beta, clip, layout
    )
    return layer.run(b, x, weights, recurrent, bias, lengths, [initial])


def _lstm_step(d: Direction, x: Value, state: State, input_forget: bool) -> State:
    """Gates in the order input, output, forget, cell; peepholes in that order without the cell."""
    b, (before, cell) = d.b, state
    sums = b.add(x, d.product(before))

    def gate(which: int, seen: Value) -> Value:
        value = d.part(sums, which)
        return value if d.peepholes is None else b.add(value, b.mul(d.part(d.peepholes, which), seen))

    taken = d.activate(0, gate(0, cell))
    kept = ar.sub(b, 1.0, taken) if input_forget else d.activate(0, gate(2, cell))
    new = b.add(b.mul(kept, cell), b.mul(taken, d.activate(1, d.part(sums, 3))))
    out = d.activate(0, gate(1, new))
    return b.mul(out, d.activations[2](b, new)), new


@operator("LSTM", since=7)
def lstm(
    b: Builder,
    x: Value,
    weights: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    initial: Value | None = None,
    initial_cell: Value | None = None,
    peepholes: Value | None = None,
    *,
    activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
    activations: list[str] | None = None,
    clip: float = 0.0,
    direction: str = "forward",
    hidden_size: int = 0,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Value, ...]:
    def step(d: Direction, now: Value, state: State) -> State:
        return _lstm_step(d, now, state, bool(input_forget))

    names = ("Sigmoid", "Tanh", "Tanh")
    layer = Layer(4, step, names, direction, activations, activation_alpha, activation_beta, clip, layout)
    return layer.run(b, x, weights, recurrent, bias, lengths, [initial, initial_cell], peepholes)
