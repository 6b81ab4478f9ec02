"""exp2, log2, sin and erf of f32 vectors as polynomials.

The coefficients are near-minimax: least squares on Chebyshev nodes, reweighted after Lawson until the weighted error is
level, in f64, then rounded to f32. Each function states its domain and its error, which the tests measure.
"""

from __future__ import annotations

import math

from workbench.runtime.cpu.builder import Builder, Value

_ROUND_F32 = 12582912.0
"""1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits."""
_ROUND_F64 = 1.5 * 2.0**52

_EXP2 = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.009618437848985195,
         0.0013398900628089905, 0.00015353341586887836)  # fmt: skip
_LOG2 = (-0.7213473320007324, 0.4808982312679291, -0.36069661378860474, 0.28856751322746277, -0.23961834609508514,
         0.20459981262683868, -0.1910557597875595, 0.18617533147335052, -0.1099637895822525)  # fmt: skip
_SIN = (-0.16666659712791443, 0.008333065547049046, -0.0001980953966267407, 2.6056311526190257e-06)
_ERF_BRANCH = 0.921875
_ERF_SMALL = (-0.37612634897232056, 0.11283710598945618, -0.026860006153583527, 0.00520222308114171,
              -0.0008153889211826026, 8.410493319388479e-05)  # fmt: skip
_ERF_TAIL = (0.00025273821665905416, -1.6295490264892578, -0.9137194156646729, -0.156222864985466, 0.03624466806650162,
             -0.006019467953592539, 0.0006271883612498641, -3.046756683033891e-05)  # fmt: skip


def exp2(b: Builder, x: Value) -> Value:
    """2**x within 2 ulp; overflows to inf, NaN stays NaN. Results below 2**-126 are 0: computing a subnormal costs
    Intel processors some 150 cycles, and a masked softmax is full of them."""
    shifted = b.binary("fadd", x, b.like(x, _ROUND_F32))
    r = b.binary("fsub", x, b.binary("fsub", shifted, b.like(x, _ROUND_F32)))
    p = b.fma(b.horner(r, _EXP2), r, b.like(x, 1.0))
    n = b.convert("bitcast", shifted, "i32")  # its low bits; the rest leaves by the shift
    bits = b.binary("add", b.convert("bitcast", p, "i32"), b.binary("shl", n, b.like(n, 23)))
    scaled = b.convert("bitcast", bits, "float")
    small = b.select(b.compare("olt", x, b.like(x, -126.0)), b.like(x, 0.0), scaled)
    return b.select(b.compare("uge", x, b.like(x, 128.0)), b.binary("fadd", x, b.like(x, math.inf)), small)


def log2(b: Builder, x: Value) -> Value:
    """log2(x) within 2 ulp, subnormal x included; 0 gives -inf, x < 0 NaN, inf inf."""
    tiny = b.compare("olt", x, b.like(x, 2.0**-126))
    scaled = b.select(tiny, b.binary("fmul", x, b.like(x, 2.0**23)), x)
    bits = b.convert("bitcast", scaled, "i32")
    root_half = 0x3F3504F3
    exponent = b.binary("ashr", b.binary("sub", bits, b.like(bits, root_half)), b.like(bits, 23))
    mantissa = b.binary("sub", bits, b.binary("shl", exponent, b.like(bits, 23)))
    f = b.binary("fsub", b.convert("bitcast", mantissa, "float"), b.like(x, 1.0))
    e = b.convert("sitofp", exponent, "float")
    e = b.select(tiny, b.binary("fsub", e, b.like(x, 23.0)), e)
    high = 1.4423828125  # 1/ln 2 in 11 bits, and what is left of it
    low = b.fma(f, b.like(x, 1.0 / math.log(2.0) - high), b.binary("fmul", b.binary("fmul", f, f), b.horner(f, _LOG2)))
    result = b.binary("fadd", e, b.fma(f, b.like(x, high), low))
    result = b.select(b.compare("oeq", x, b.like(x, math.inf)), x, result)
    result = b.select(b.compare("oeq", x, b.like(x, 0.0)), b.like(x, -math.inf), result)
    return b.select(b.compare("ult", x, b.like(x, 0.0)), b.like(x, math.nan), result)


def sin(b: Builder, x: Value) -> Value:
    """sin(x) within 2e-7 for |x| <= 1e6 (the reduction by pi is done in f64); inf and NaN give NaN."""
    wide = b.convert("fpext", x, "double")
    shifted = b.fma(wide, b.like(wide, 1.0 / math.pi), b.like(wide, _ROUND_F64))
    n = b.binary("fsub", shifted, b.like(wide, _ROUND_F64))
    reduced = b.fma(n, b.like(wide, -math.pi), wide)
    reduced = b.fma(n, b.like(wide, -1.2246467991473532e-16), reduced)  # pi - float(pi)
    r = b.convert("fptrunc", reduced, "float")
    limit = 1.5709  # a little over pi/2: beyond the reach of the reduction the result is still in [-1, 1]
    r = b.select(b.compare("ogt", r, b.like(r, limit)), b.like(r, limit), r)
    r = b.select(b.compare("olt", r, b.like(r, -limit)), b.like(r, -limit), r)
    square = b.binary("fmul", r, r)
    s = b.fma(b.binary("fmul", b.binary("fmul", r, square), b.horner(square, _SIN)), b.like(r, 1.0), r)
    parity = b.convert("trunc", b.convert("bitcast", shifted, "i64"), "i32")
    sign = b.binary("shl", parity, b.like(parity, 31))
    return b.convert("bitcast", b.binary("xor", b.convert("bitcast", s, "i32"), sign), "float")


def erf(b: Builder, x: Value) -> Value:
    """erf(x) within 2e-7, and within 2 ulp for |x| below 0.92; tends to +-1, NaN stays NaN."""
    square = b.binary("fmul", x, x)
    cubic = b.binary("fmul", b.binary("fmul", x, square), b.horner(square, _ERF_SMALL))
    near = b.fma(x, b.like(x, 2.0 / math.sqrt(math.pi)), cubic)
    size = b.intrinsic("fabs", x)
    t = b.select(b.compare("ogt", size, b.like(x, 4.0)), b.like(x, 4.0), size)
    complement = exp2(b, b.horner(t, _ERF_TAIL))
    far = b.intrinsic("copysign", b.binary("fsub", b.like(x, 1.0), complement), x)
    return b.select(b.compare("olt", size, b.like(x, _ERF_BRANCH)), near, far)
