/* What the test programs share: checks, memory, the definition of both operators, and layers.
 *
 * It is C11 and C++17. */
#ifndef CHECK_H
#define CHECK_H

#include <convoke.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Checks --------------------------------------------------------------------------------- */

static int checks_passed;

static inline void check_that(bool holds, const char *text, const char *file, int line)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
        exit(1);
    }
    checks_passed++;
}

#define CHECK(condition) check_that((condition), #condition, __FILE__, __LINE__)

/* What the last call of `OK` or `FAILS` wrote. */
static convoke_error last_error;

static inline void check_status(convoke_status status, convoke_status expected, const char *part, const char *call,
                                const char *file, int line)
{
    bool is_reported = last_error.status == status && last_error.length >= strlen(last_error.message);
    if (status != expected || !is_reported || !strstr(last_error.message, part)) {
        fprintf(stderr, "%s:%d: %s\n  %s: \"%s\"\n  expected %s: \"%s\"\n", file, line, call,
                convoke_status_name(status), last_error.message, convoke_status_name(expected), part);
        exit(1);
    }
    checks_passed++;
}

/* A call that succeeds, and one that fails with a status and a message that has a part. The calls
 * report to `&last_error`. */
#define OK(call) check_status((call), CONVOKE_STATUS_OK, "", #call, __FILE__, __LINE__)
#define FAILS(status, part, call) check_status((call), (status), (part), #call, __FILE__, __LINE__)

/* --- Memory --------------------------------------------------------------------------------- */

/* Memory at a multiple of 64 bytes, full of 0xff: a NaN in each element type. */
static inline void *aligned_memory(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    CHECK(memory || !bytes);
    if (memory)
        memset(memory, 0xff, bytes);
    return memory;
}

static inline bool all_bytes_are(const void *memory, size_t bytes, int value)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)memory)[i] != value)
            return false;
    return true;
}

/* --- Element types -------------------------------------------------------------------------- */

static inline size_t bytes_of(uint32_t dtype)
{
    switch (dtype) {
    case CONVOKE_DTYPE_FLOAT: return 4;
    case CONVOKE_DTYPE_DOUBLE: return 8;
    default: return 2;
    }
}

/* The distance of 1 to the next number. */
static inline double epsilon_of(uint32_t dtype)
{
    switch (dtype) {
    case CONVOKE_DTYPE_FLOAT: return ldexp(1, -23);
    case CONVOKE_DTYPE_DOUBLE: return ldexp(1, -52);
    case CONVOKE_DTYPE_FLOAT16: return ldexp(1, -10);
    default: return ldexp(1, -7);
    }
}

/* Elements that are multiples of 1/8 between -4 and 4: exact in every type. */
static inline void set_element(uint32_t dtype, void *tensor, size_t i, double value)
{
    if (dtype == CONVOKE_DTYPE_DOUBLE) {
        ((double *)tensor)[i] = value;
        return;
    }
    float narrow = (float)value;
    if (dtype == CONVOKE_DTYPE_FLOAT) {
        ((float *)tensor)[i] = narrow;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    uint32_t half = bits >> 16; /* bfloat16 */
    if (dtype == CONVOKE_DTYPE_FLOAT16) {
        int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
        half = (bits >> 16 & 0x8000) | (value == 0 ? 0 : ((uint32_t)exponent << 10 | (bits >> 13 & 0x3ff)));
    }
    ((uint16_t *)tensor)[i] = (uint16_t)half;
}

static inline double element(uint32_t dtype, const void *tensor, size_t i)
{
    if (dtype == CONVOKE_DTYPE_DOUBLE)
        return ((const double *)tensor)[i];
    if (dtype == CONVOKE_DTYPE_FLOAT)
        return (double)((const float *)tensor)[i];
    uint32_t half = ((const uint16_t *)tensor)[i];
    if (dtype == CONVOKE_DTYPE_FLOAT16) {
        int exponent = (int)(half >> 10 & 0x1f);
        double fraction = half & 0x3ff, sign = half & 0x8000 ? -1 : 1;
        if (exponent == 31)
            return (double)NAN;
        return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
    }
    uint32_t bits = half << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return (double)wide;
}

/* A tensor of such elements; the caller frees it. */
static inline void *tensor_of(uint32_t dtype, size_t len, uint32_t seed)
{
    void *tensor = aligned_memory(len * bytes_of(dtype));
    for (size_t i = 0; i < len; i++) {
        seed = seed * 1664525 + 1013904223;
        set_element(dtype, tensor, i, ((double)(seed >> 26) - 32) / 8);
    }
    return tensor;
}

/* --- Layers --------------------------------------------------------------------------------- */

/* A layer on two spatial axes. */
typedef struct layer {
    bool is_transposed;
    int64_t x[4];
    int64_t w[4];
    int64_t strides[2], dilations[2], pads[4], output_padding[2];
    int64_t group;
    const char *auto_pad;
    /* Y's shape, as ONNX defines it, and the padding before each axis. */
    int64_t y[4];
    int64_t begins[2];
} layer;

static const layer LAYERS[] = {
    /* A residual block's 3x3, one of stride 2 with padding at one end, dilation, groups. */
    {false, {2, 5, 9, 8}, {7, 5, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, {0, 0}, 1, NULL, {2, 7, 9, 8}, {1, 1}},
    {false, {1, 3, 11, 10}, {6, 3, 3, 3}, {2, 2}, {1, 1}, {0, 0, 1, 1}, {0, 0}, 1, NULL, {1, 6, 5, 5}, {0, 0}},
    {false, {1, 4, 9, 9}, {4, 2, 3, 2}, {1, 2}, {2, 1}, {2, 0, 2, 1}, {0, 0}, 2, NULL, {1, 4, 9, 5}, {2, 0}},
    {false, {1, 6, 8, 8}, {6, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, {0, 0}, 6, NULL, {1, 6, 8, 8}, {1, 1}},
    {false, {1, 8, 6, 6}, {9, 8, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {0, 0}, 1, NULL, {1, 9, 6, 6}, {0, 0}},
    /* An odd padding of which the beginning has more. */
    {false, {1, 2, 7, 8}, {3, 2, 2, 4}, {1, 1}, {1, 1}, {0, 0, 0, 0}, {0, 0}, 1, "SAME_LOWER", {1, 3, 7, 8}, {1, 2}},
    {true, {1, 4, 5, 6}, {4, 3, 4, 4}, {2, 2}, {1, 1}, {1, 1, 1, 1}, {0, 0}, 1, NULL, {1, 3, 10, 12}, {1, 1}},
    {true, {2, 4, 4, 3}, {4, 2, 3, 3}, {3, 2}, {1, 2}, {0, 1, 1, 0}, {1, 1}, 2, NULL, {2, 4, 12, 9}, {0, 1}},
};
enum { LAYER_COUNT = sizeof LAYERS / sizeof LAYERS[0] };

static inline size_t elements(const int64_t *shape)
{
    return (size_t)(shape[0] * shape[1] * shape[2] * shape[3]);
}

/* The layer's operator, from attributes one by one. */
static inline convoke_operator *operator_of(const layer *l)
{
    convoke_operator *op = NULL;
    const char *type = l->is_transposed ? "ConvTranspose" : "Conv";
    OK(convoke_operator_create(type, 22, l->w, 4, &op, &last_error));
    OK(convoke_operator_set_ints(op, "strides", l->strides, 2, &last_error));
    OK(convoke_operator_set_ints(op, "dilations", l->dilations, 2, &last_error));
    OK(convoke_operator_set_ints(op, "kernel_shape", l->w + 2, 2, &last_error));
    OK(convoke_operator_set_int(op, "group", l->group, &last_error));
    if (l->auto_pad)
        OK(convoke_operator_set_string(op, "auto_pad", l->auto_pad, &last_error));
    else
        OK(convoke_operator_set_ints(op, "pads", l->pads, 4, &last_error));
    if (l->is_transposed)
        OK(convoke_operator_set_ints(op, "output_padding", l->output_padding, 2, &last_error));
    return op;
}

/* The same by a struct. */
static inline convoke_operator *operator_of_desc(const layer *l)
{
    convoke_operator_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op_type = l->is_transposed ? "ConvTranspose" : "Conv";
    desc.w_dims.values = l->w, desc.w_dims.len = 4;
    desc.strides.values = l->strides, desc.strides.len = 2;
    desc.dilations.values = l->dilations, desc.dilations.len = 2;
    if (!l->auto_pad)
        desc.pads.values = l->pads, desc.pads.len = 4;
    if (l->is_transposed)
        desc.output_padding.values = l->output_padding, desc.output_padding.len = 2;
    desc.auto_pad = l->auto_pad;
    desc.group = l->group;
    convoke_operator *op = NULL;
    OK(convoke_operator_create_from_desc(&desc, &op, &last_error));
    return op;
}

static inline convoke_plan_options default_options(void)
{
    convoke_plan_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    return options;
}

static inline convoke_plan *plan_of(const convoke_operator *op, const convoke_plan_options *options, uint32_t dtype,
                                    const int64_t *x)
{
    convoke_plan *plan = NULL;
    OK(convoke_plan_create(op, options, dtype, x, 4, &plan, &last_error));
    return plan;
}

static inline convoke_plan_info info_of(const convoke_plan *plan)
{
    convoke_plan_info info;
    memset(&info, 0xff, sizeof info);
    info.struct_size = sizeof info;
    OK(convoke_plan_get_info(plan, &info, &last_error));
    return info;
}

/* Packs W and bias, which may be NULL, into memory that the caller frees. */
static inline convoke_packed *packed_of(const convoke_plan *plan, const void *w, const void *bias, void **memory)
{
    convoke_plan_info info = info_of(plan);
    *memory = aligned_memory(info.packed_bytes);
    convoke_pack_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.w = w, args.w_len = info.w_len;
    args.bias = bias, args.bias_len = bias ? info.bias_len : 0;
    args.memory = *memory, args.memory_bytes = info.packed_bytes;
    convoke_packed *packed = NULL;
    OK(convoke_plan_pack(plan, &args, &packed, &last_error));
    return packed;
}

static inline convoke_run_args run_args(const convoke_plan *plan, const convoke_packed *packed, const void *x, void *y)
{
    convoke_plan_info info = info_of(plan);
    convoke_run_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.x = x, args.x_len = info.x_len;
    args.packed = packed;
    args.y = y, args.y_len = info.y_len;
    args.workspace = aligned_memory(info.workspace_bytes);
    args.workspace_bytes = info.workspace_bytes;
    return args;
}

/* --- The definition ------------------------------------------------------------------------- */

/* Sums of products, and in `scale` the sums of their absolute values. */
typedef struct definition {
    double *y, *scale;
} definition;

static inline definition defined(const layer *l, uint32_t dtype, const void *x, const void *w, const void *bias)
{
    const int64_t *xs = l->x, *ws = l->w, *ys = l->y;
    definition sums = {(double *)calloc(elements(ys), sizeof(double)), (double *)calloc(elements(ys), sizeof(double))};
    CHECK(sums.y && sums.scale);
    int64_t per_group = l->is_transposed ? ws[1] : ys[1] / l->group, c_per_group = xs[1] / l->group;
    for (int64_t n = 0; n < ys[0]; n++)
    for (int64_t m = 0; m < ys[1]; m++)
    for (int64_t c = 0; c < c_per_group; c++)
    for (int64_t i = 0; i < ws[2]; i++)
    for (int64_t j = 0; j < ws[3]; j++) {
        int64_t channel = m / per_group * c_per_group + c;
        int64_t filter = l->is_transposed ? (channel * ws[1] + m % per_group) : (m * ws[1] + c);
        double weight = element(dtype, w, (size_t)((filter * ws[2] + i) * ws[3] + j));
        /* Conv: Y at (a, b) sees X at (a, b) * stride + tap * dilation - pad. ConvTranspose: the
         * same with X and Y exchanged. */
        const int64_t *small = l->is_transposed ? xs : ys, *large = l->is_transposed ? ys : xs;
        for (int64_t a = 0; a < small[2]; a++)
        for (int64_t b = 0; b < small[3]; b++) {
            int64_t row = a * l->strides[0] + i * l->dilations[0] - l->begins[0];
            int64_t column = b * l->strides[1] + j * l->dilations[1] - l->begins[1];
            if (row < 0 || row >= large[2] || column < 0 || column >= large[3])
                continue;
            int64_t at_small = a * small[3] + b, at_large = row * large[3] + column;
            int64_t at_x = l->is_transposed ? at_small : at_large, at_y = l->is_transposed ? at_large : at_small;
            double product = weight * element(dtype, x, (size_t)((n * xs[1] + channel) * xs[2] * xs[3] + at_x));
            size_t y = (size_t)((n * ys[1] + m) * ys[2] * ys[3] + at_y);
            sums.y[y] += product;
            sums.scale[y] += fabs(product);
        }
    }
    for (size_t y = 0; bias && y < elements(ys); y++)
        sums.y[y] += element(dtype, bias, y / (size_t)(ys[2] * ys[3]) % (size_t)ys[1]);
    return sums;
}

/* Whether Y is what `activated` makes of the sums and a residual, which may be NULL. The bound is
 * generous: it is there to find wrong arguments, and the library's own tests have the narrow one. */
static inline bool is_defined(definition sums, const layer *l, uint32_t dtype, const void *y, const void *residual,
                              double (*activated)(double))
{
    for (size_t i = 0; i < elements(l->y); i++) {
        double sum = sums.y[i] + (residual ? element(dtype, residual, i) : 0);
        double expected = activated ? activated(sum) : sum, is = element(dtype, y, i);
        double scale = 1 + fabs(expected) + (dtype == CONVOKE_DTYPE_DOUBLE ? 1 : 1e2) * sums.scale[i] * 1e-6;
        double bound = scale * (dtype == CONVOKE_DTYPE_DOUBLE ? 1e-10 : 1e-3 + epsilon_of(dtype));
        if (!(fabs(is - expected) <= bound)) {
            fprintf(stderr, "element %zu is %.9g, expected %.9g\n", i, is, expected);
            return false;
        }
    }
    return true;
}

static inline void free_definition(definition sums)
{
    free(sums.y);
    free(sums.scale);
}

#endif
