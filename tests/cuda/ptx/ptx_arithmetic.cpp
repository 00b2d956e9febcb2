/* SPDX-License-Identifier: MIT */
/* Instructions that every lane does by itself, without memory: a function for each name. What a
 * name does not say here is not known, so approximations, saturation and flushing to zero end the
 * test. */
#include "ptx_warp.h"

#include "cuda_fp16.h"
#include "cuda_runtime.h"

#include <math.h>

#include <limits>
#include <type_traits>
#include <unordered_map>

namespace ptx
{
namespace
{
typedef std::unordered_map<std::string, handler> table;

template <typename T> using cell_of = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <typename T>
using bits_of = std::make_unsigned_t<std::conditional_t<
    std::is_floating_point_v<T>, std::conditional_t<sizeof(T) == 8, int64_t, int32_t>, T>>;

template <typename T> inline T take(const cell_of<T> *cell)
{
    bits_of<T> bits = (bits_of<T>)*cell;
    T value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <typename T> inline void give(cell_of<T> *cell, T value)
{
    bits_of<T> bits;
    memcpy(&bits, &value, sizeof(value));
    *cell = bits;
}

template <typename T> inline cell_of<T> *cells(const warp &w, const operand &o)
{
    return (cell_of<T> *)w.cells(o);
}

template <typename D, typename S, auto Function> void unary(warp &w, const instruction &i)
{
    cell_of<D> *d = cells<D>(w, i.out[0]);
    const cell_of<S> *a = cells<S>(w, i.in[0]);
    each_lane(w.active, [=](unsigned lane) { give<D>(&d[lane], Function(take<S>(&a[lane]))); });
}

template <typename D, typename S, auto Function> void binary(warp &w, const instruction &i)
{
    cell_of<D> *d = cells<D>(w, i.out[0]);
    const cell_of<S> *a = cells<S>(w, i.in[0]), *b = cells<S>(w, i.in[1]);
    each_lane(w.active, [=](unsigned lane) {
        give<D>(&d[lane], Function(take<S>(&a[lane]), take<S>(&b[lane])));
    });
}

/* The third operand may be of another type. */
template <typename D, typename S, typename C, auto Function>
void ternary(warp &w, const instruction &i)
{
    cell_of<D> *d = cells<D>(w, i.out[0]);
    const cell_of<S> *a = cells<S>(w, i.in[0]), *b = cells<S>(w, i.in[1]);
    const cell_of<C> *c = cells<C>(w, i.in[2]);
    each_lane(w.active, [=](unsigned lane) {
        give<D>(&d[lane], Function(take<S>(&a[lane]), take<S>(&b[lane]), take<C>(&c[lane])));
    });
}

template <typename T, bool TO_RIGHT> void shift(warp &w, const instruction &i)
{
    cell_of<T> *d = cells<T>(w, i.out[0]);
    const cell_of<T> *a = cells<T>(w, i.in[0]);
    const uint32_t *by = cells<uint32_t>(w, i.in[1]);
    constexpr uint32_t width = 8 * sizeof(T);
    each_lane(w.active, [=](unsigned lane) {
        T value = take<T>(&a[lane]);
        uint32_t n = by[lane];
        T out;
        if (TO_RIGHT)
            out = (T)(value >> (n < width ? n : width - 1)) * (T)(n < width || std::is_signed_v<T>);
        else
            out = n < width ? (T)((uint64_t)value << n) : (T)0;
        give<T>(&d[lane], out);
    });
}

/* Sums and products that wrap, of signed and unsigned numbers alike. T: unsigned. */
template <typename T> void add_wrapping(table *t, const std::string &name)
{
    (*t)["add." + name] = binary<T, T, [](T a, T b) { return (T)(a + b); }>;
    (*t)["sub." + name] = binary<T, T, [](T a, T b) { return (T)(a - b); }>;
    (*t)["mul.lo." + name] = binary<T, T, [](T a, T b) { return (T)((uint64_t)a * b); }>;
    (*t)["mad.lo." + name] =
        ternary<T, T, T, [](T a, T b, T c) { return (T)((uint64_t)a * b + c); }>;
}

/* What bits are, whatever they mean. */
template <typename T> void add_bits(table *t, const std::string &name)
{
    (*t)["mov." + name] = unary<T, T, [](T a) { return a; }>;
    (*t)["and." + name] = binary<T, T, [](T a, T b) { return (T)(a & b); }>;
    (*t)["or." + name] = binary<T, T, [](T a, T b) { return (T)(a | b); }>;
    (*t)["xor." + name] = binary<T, T, [](T a, T b) { return (T)(a ^ b); }>;
    (*t)["not." + name] = unary<T, T, [](T a) { return (T)~a; }>;
    (*t)["shl." + name] = shift<T, false>;
    (*t)["shr." + name] = shift<T, true>;
}

template <typename T> void add_choice(table *t, const std::string &name)
{
    (*t)["mov." + name] = unary<T, T, [](T a) { return a; }>;
    (*t)["selp." + name] =
        ternary<T, T, uint32_t, [](T a, T b, uint32_t first) { return first != 0 ? a : b; }>;
}

/* Comparisons that do not hold when an operand is no number. */
template <typename T> void add_comparisons(table *t, const std::string &name)
{
    typedef uint32_t P;
    (*t)["setp.eq." + name] = binary<P, T, [](T a, T b) { return (P)(a == b); }>;
    (*t)["setp.ne." + name] = binary<P, T, [](T a, T b) { return (P)(a < b || a > b); }>;
    (*t)["setp.lt." + name] = binary<P, T, [](T a, T b) { return (P)(a < b); }>;
    (*t)["setp.le." + name] = binary<P, T, [](T a, T b) { return (P)(a <= b); }>;
    (*t)["setp.gt." + name] = binary<P, T, [](T a, T b) { return (P)(a > b); }>;
    (*t)["setp.ge." + name] = binary<P, T, [](T a, T b) { return (P)(a >= b); }>;
}

template <typename T> void add_integers(table *t, const std::string &name)
{
    typedef std::make_unsigned_t<T> U;
    add_wrapping<U>(t, name);
    add_choice<T>(t, name);
    add_comparisons<T>(t, name);
    (*t)["shr." + name] = shift<T, true>;
    (*t)["min." + name] = binary<T, T, [](T a, T b) { return a < b ? a : b; }>;
    (*t)["max." + name] = binary<T, T, [](T a, T b) { return a < b ? b : a; }>;
    (*t)["neg." + name] = unary<U, U, [](U a) { return (U)(0 - a); }>;
    (*t)["abs." + name] = unary<T, T, [](T a) { return (T)(a < 0 ? (T)(0 - (U)a) : a); }>;
}

template <typename T> void divide(warp &w, const instruction &i, bool rest)
{
    each_lane(w.active, [&](unsigned lane) {
        T a = (T)w.get(i.in[0], lane), b = (T)w.get(i.in[1], lane);
        if (b == 0)
            fail(w, i, lane, "a division by zero");
        T out = std::is_signed_v<T> && b == (T)-1 ? (T)(rest ? 0 : 0 - (std::make_unsigned_t<T>)a)
                : rest                            ? (T)(a % b)
                                                  : (T)(a / b);
        w.set(i.out[0], lane, (std::make_unsigned_t<T>)out);
    });
}

template <typename T> void add_quotients(table *t, const std::string &name)
{
    (*t)["div." + name] = [](warp &w, const instruction &i) { divide<T>(w, i, false); };
    (*t)["rem." + name] = [](warp &w, const instruction &i) { divide<T>(w, i, true); };
}

template <typename W, typename T> void add_wide(table *t, const std::string &name)
{
    (*t)["mul.wide." + name] = binary<W, T, [](T a, T b) { return (W)((W)a * (W)b); }>;
    (*t)["mad.wide." + name] =
        ternary<W, T, W, [](T a, T b, W c) { return (W)((uint64_t)((W)a * (W)b) + (uint64_t)c); }>;
    (*t)["mul.hi." + name] =
        binary<T, T, [](T a, T b) { return (T)((W)a * (W)b >> 8 * sizeof(T)); }>;
}

/* Rounded to the nearest, nothing contracted: this file is compiled without contraction. */
template <typename T> void add_floats(table *t, const std::string &name)
{
    typedef uint32_t P;
    add_choice<T>(t, name);
    add_comparisons<T>(t, name);
    (*t)["setp.ltu." + name] = binary<P, T, [](T a, T b) { return (P) !(a >= b); }>;
    (*t)["setp.leu." + name] = binary<P, T, [](T a, T b) { return (P) !(a > b); }>;
    (*t)["setp.gtu." + name] = binary<P, T, [](T a, T b) { return (P) !(a <= b); }>;
    (*t)["setp.geu." + name] = binary<P, T, [](T a, T b) { return (P) !(a < b); }>;
    (*t)["setp.equ." + name] = binary<P, T, [](T a, T b) { return (P) !(a < b || a > b); }>;
    (*t)["setp.neu." + name] = binary<P, T, [](T a, T b) { return (P)(a != b); }>;
    (*t)["setp.num." + name] = binary<P, T, [](T a, T b) { return (P)(a == a && b == b); }>;
    (*t)["setp.nan." + name] = binary<P, T, [](T a, T b) { return (P)(a != a || b != b); }>;
    (*t)["add.rn." + name] = binary<T, T, [](T a, T b) { return a + b; }>;
    (*t)["sub.rn." + name] = binary<T, T, [](T a, T b) { return a - b; }>;
    (*t)["mul.rn." + name] = binary<T, T, [](T a, T b) { return a * b; }>;
    (*t)["div.rn." + name] = binary<T, T, [](T a, T b) { return a / b; }>;
    (*t)["rcp.rn." + name] = unary<T, T, [](T a) { return 1 / a; }>;
    (*t)["sqrt.rn." + name] = unary<T, T, [](T a) { return (T)std::sqrt(a); }>;
    (*t)["fma.rn." + name] = ternary<T, T, T, [](T a, T b, T c) { return (T)std::fma(a, b, c); }>;
    (*t)["min." + name] = binary<T, T, [](T a, T b) { return (T)std::fmin(a, b); }>;
    (*t)["max." + name] = binary<T, T, [](T a, T b) { return (T)std::fmax(a, b); }>;
    (*t)["neg." + name] = unary<T, T, [](T a) { return -a; }>;
    (*t)["abs." + name] = unary<T, T, [](T a) { return (T)std::fabs(a); }>;
}

/* The nearest number that the type has; no number becomes 0. */
template <typename I, typename F> I whole_of(F value)
{
    typedef std::numeric_limits<I> limits;
    if (value != value)
        return 0;
    if (value >= (F)limits::max())
        return limits::max();
    if (value <= (F)limits::min())
        return limits::min();
    return (I)value;
}

/* The source may be in a register that is wider than it, the result too: it is extended. */
template <typename D, typename S, auto Function> void convert(warp &w, const instruction &i)
{
    each_lane(w.active, [&](unsigned lane) {
        S value;
        uint64_t bits = w.get(i.in[0], lane);
        memcpy(&value, &bits, sizeof(value));
        D out = Function(value);
        bits = 0;
        if constexpr (std::is_integral_v<D>)
            bits = (uint64_t)(int64_t)out;
        else
            memcpy(&bits, &out, sizeof(out));
        w.set(i.out[0], lane, bits);
    });
}

template <typename D, typename S>
void add_cast(table *t, const std::string &to, const std::string &from)
{
    (*t)["cvt." + to + "." + from] = convert<D, S, [](S a) { return (D)a; }>;
}

template <typename S> void add_casts_from(table *t, const std::string &from)
{
    add_cast<uint8_t, S>(t, "u8", from);
    add_cast<int8_t, S>(t, "s8", from);
    add_cast<uint16_t, S>(t, "u16", from);
    add_cast<int16_t, S>(t, "s16", from);
    add_cast<uint32_t, S>(t, "u32", from);
    add_cast<int32_t, S>(t, "s32", from);
    add_cast<uint64_t, S>(t, "u64", from);
    add_cast<int64_t, S>(t, "s64", from);
    add_cast<float, S>(t, "rn.f32", from);
    add_cast<double, S>(t, "rn.f64", from);
}

template <typename F> void add_casts_of_floats(table *t, const std::string &from)
{
    (*t)["cvt.rzi.s32." + from] = convert<int32_t, F, whole_of<int32_t, F>>;
    (*t)["cvt.rzi.u32." + from] = convert<uint32_t, F, whole_of<uint32_t, F>>;
    (*t)["cvt.rzi.s64." + from] = convert<int64_t, F, whole_of<int64_t, F>>;
    (*t)["cvt.rzi.u64." + from] = convert<uint64_t, F, whole_of<uint64_t, F>>;
    (*t)["cvt.rzi." + from + "." + from] = convert<F, F, [](F a) { return (F)std::trunc(a); }>;
    (*t)["cvt.rni." + from + "." + from] = convert<F, F, [](F a) { return (F)std::nearbyint(a); }>;
}

void add_conversions(table *t)
{
    add_casts_from<uint8_t>(t, "u8");
    add_casts_from<int8_t>(t, "s8");
    add_casts_from<uint16_t>(t, "u16");
    add_casts_from<int16_t>(t, "s16");
    add_casts_from<uint32_t>(t, "u32");
    add_casts_from<int32_t>(t, "s32");
    add_casts_from<uint64_t>(t, "u64");
    add_casts_from<int64_t>(t, "s64");
    add_casts_of_floats<float>(t, "f32");
    add_casts_of_floats<double>(t, "f64");
    add_cast<double, float>(t, "f64", "f32");
    add_cast<float, double>(t, "rn.f32", "f64");
    (*t)["cvt.f32.f16"] =
        convert<float, uint16_t, [](uint16_t a) { return __half2float(__half{a}); }>;
    (*t)["cvt.rn.f16.f32"] =
        convert<uint16_t, float, [](float a) { return __float2half_rn(a).bits; }>;
    (*t)["cvt.rn.f16x2.f32"] = binary<uint32_t, float, [](float high, float low) {
        return (uint32_t)__float2half_rn(high).bits << 16 | __float2half_rn(low).bits;
    }>;
}

/* A register as `target` parts of n bits. */
void split(warp &w, const instruction &i)
{
    uint64_t mask = UINT64_MAX >> (64 - i.n);
    each_lane(w.active, [&](unsigned lane) {
        uint64_t whole = w.get(i.in[0], lane);
        for (unsigned part = 0; part < i.target; part++)
            w.set(i.out[part], lane, whole >> part * i.n & mask);
    });
}

void join(warp &w, const instruction &i)
{
    uint64_t mask = UINT64_MAX >> (64 - i.n);
    each_lane(w.active, [&](unsigned lane) {
        uint64_t whole = 0;
        for (unsigned part = 0; part < i.target; part++)
            whole |= (w.get(i.in[part], lane) & mask) << part * i.n;
        w.set(i.out[0], lane, whole);
    });
}

void insert_bits(warp &w, const instruction &i)
{
    each_lane(w.active, [&](unsigned lane) {
        uint32_t first = (uint32_t)w.get(i.in[2], lane) & 255,
                 n = (uint32_t)w.get(i.in[3], lane) & 255;
        uint64_t ones = n >= 32 ? UINT32_MAX : ((uint64_t)1 << n) - 1;
        uint32_t mask = first >= 32 ? 0 : (uint32_t)(ones << first);
        uint64_t shifted = first >= 32 ? 0 : w.get(i.in[0], lane) << first;
        w.set(i.out[0], lane, (w.get(i.in[1], lane) & ~mask) | (shifted & mask));
    });
}

void add_words(table *t)
{
    typedef uint32_t U;
    (*t)["dp4a.s32.s32"] =
        ternary<int, int, int, [](int a, int b, int c) { return __dp4a(a, b, c); }>;
    (*t)["prmt.b32"] = ternary<U, U, U, [](U a, U b, U c) { return __byte_perm(a, b, c); }>;
    (*t)["shf.r.wrap.b32"] =
        ternary<U, U, U, [](U a, U b, U c) { return __funnelshift_r(a, b, c); }>;
    (*t)["shf.l.wrap.b32"] = ternary<U, U, U, [](U a, U b, U c) {
        return (U)((((uint64_t)b << 32 | a) << (c & 31)) >> 32);
    }>;
    (*t)["bfi.b32"] = insert_bits;
    (*t)["mov.split"] = split;
    (*t)["mov.join"] = join;
    /* The first guess of a division that corrects it: some bits are right. */
    (*t)["rcp.approx.ftz.f64"] = unary<uint64_t, double, [](double a) {
        double guess = 1 / a;
        uint64_t bits;
        memcpy(&bits, &guess, sizeof(bits));
        return bits & ~(uint64_t)UINT32_MAX;
    }>;
}

table make_table(void)
{
    table t;
    for (const char *name : {"b16", "u16", "s16"})
        add_bits<uint16_t>(&t, name);
    for (const char *name : {"b32", "u32", "s32"})
        add_bits<uint32_t>(&t, name);
    for (const char *name : {"b64", "u64", "s64"})
        add_bits<uint64_t>(&t, name);
    add_bits<uint32_t>(&t, "pred");
    t["not.pred"] = unary<uint32_t, uint32_t, [](uint32_t a) { return (uint32_t)(a == 0); }>;
    add_integers<uint16_t>(&t, "u16");
    add_integers<int16_t>(&t, "s16");
    add_integers<uint32_t>(&t, "u32");
    add_integers<int32_t>(&t, "s32");
    add_integers<uint64_t>(&t, "u64");
    add_integers<int64_t>(&t, "s64");
    for (const char *name : {"b16", "b32", "b64"}) {
        std::string as = std::string("u") + (name + 1);
        for (const char *op : {"selp.", "setp.eq.", "setp.ne."})
            t[std::string(op) + name] = t[op + as];
    }
    add_quotients<uint16_t>(&t, "u16");
    add_quotients<int16_t>(&t, "s16");
    add_quotients<uint32_t>(&t, "u32");
    add_quotients<int32_t>(&t, "s32");
    add_quotients<uint64_t>(&t, "u64");
    add_quotients<int64_t>(&t, "s64");
    add_wide<uint32_t, uint16_t>(&t, "u16");
    add_wide<int32_t, int16_t>(&t, "s16");
    add_wide<uint64_t, uint32_t>(&t, "u32");
    add_wide<int64_t, int32_t>(&t, "s32");
    add_floats<float>(&t, "f32");
    add_floats<double>(&t, "f64");
    add_conversions(&t);
    add_words(&t);
    return t;
}
} // namespace

handler arithmetic_of(const std::string &opcode)
{
    static const table all = make_table();
    auto found = all.find(opcode);
    return found == all.end() ? nullptr : found->second;
}
} // namespace ptx
