/* Layers of bytes: each layer in all types compared with the definition, and every mistake. */
#ifndef QUANTISED_H
#define QUANTISED_H

#include "errors.h"

static const uint32_t IN_DTYPES[] = {CONVOKE_DTYPE_UINT8, CONVOKE_DTYPE_INT8};
static const uint32_t OUT_DTYPES[] = {CONVOKE_DTYPE_UINT8, CONVOKE_DTYPE_INT8, CONVOKE_DTYPE_INT32, CONVOKE_DTYPE_FLOAT,
                                      CONVOKE_DTYPE_FLOAT16};
#define OUT_DTYPE_COUNT (sizeof OUT_DTYPES / sizeof *OUT_DTYPES)

static inline size_t bytes_of_quantised(uint32_t dtype)
{
    if (dtype == CONVOKE_DTYPE_UINT8 || dtype == CONVOKE_DTYPE_INT8)
        return 1;
    return dtype == CONVOKE_DTYPE_FLOAT16 ? 2 : 4;
}

/* The value of a byte of either type. */
static inline int32_t byte_value(uint32_t dtype, uint8_t bits)
{
    return dtype == CONVOKE_DTYPE_UINT8 || bits < 128 ? bits : bits - 256;
}

static inline uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 24;
}

/* Any bytes; the caller frees them. */
static inline uint8_t *bytes_that_look_random(size_t len, uint32_t seed)
{
    uint8_t *bytes = (uint8_t *)aligned_memory(len);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)next_random(&seed);
    return bytes;
}

/* A layer with what it needs. W has a zero point and a scale for each output channel if `is_each`, else one of each. */
typedef struct quantised {
    const layer *l;
    convoke_quantised_dtypes dtypes;
    convoke_plan *plan;
    convoke_quantised_weights *weights;
    convoke_scaled *scaled;
    convoke_quantised_pack_args pack;
    convoke_scales scales;
    convoke_quantised_run_args args;
    uint8_t *x, *w, *w_zero_point, *residual; /* in ONNX's order */
    int32_t *bias;
    float *w_scale;
    void *y;
    size_t y_bytes;
} quantised;

static inline quantised quantised_of(const layer *l, convoke_quantised_dtypes dtypes, const convoke_plan_options *options,
                                     bool is_each)
{
    quantised q;
    memset(&q, 0, sizeof q);
    q.l = l, q.dtypes = dtypes;
    convoke_operator *op = operator_of(l);
    OK(convoke_plan_create_quantised(op, options, &dtypes, l->x, 4, &q.plan, &last_error));
    convoke_operator_destroy(op);
    convoke_plan_info info = info_of(q.plan);
    size_t each = is_each ? info.bias_len : 1;
    q.x = bytes_that_look_random(info.x_len, 1), q.w = bytes_that_look_random(info.w_len, 2);
    q.w_zero_point = bytes_that_look_random(each, 3);
    q.bias = (int32_t *)aligned_memory(info.bias_len * sizeof *q.bias);
    q.w_scale = (float *)aligned_memory(each * sizeof *q.w_scale);
    for (size_t m = 0; m < info.bias_len; m++)
        q.bias[m] = (int32_t)m * 1001 - 3000;
    for (size_t m = 0; m < each; m++)
        q.w_scale[m] = 0.01f + (float)m * 0.001f;
    q.y_bytes = info.y_len * bytes_of_quantised(dtypes.y);
    q.y = aligned_memory(q.y_bytes);

    q.pack.struct_size = sizeof q.pack;
    q.pack.w = q.w, q.pack.w_len = info.w_len;
    q.pack.w_zero_point = q.w_zero_point, q.pack.w_zero_point_len = each;
    q.pack.bias = q.bias, q.pack.bias_len = info.bias_len;
    OK(convoke_plan_pack_quantised(q.plan, &q.pack, &q.weights, &last_error));
    q.scales.struct_size = sizeof q.scales;
    q.scales.x_scale = 0.02f, q.scales.x_zero_point = 77;
    if (dtypes.y != CONVOKE_DTYPE_INT32) {
        q.scales.w_scale = q.w_scale, q.scales.w_scale_len = each;
        q.scales.y_scale = 0.37f, q.scales.y_zero_point = -5 + 10 * (dtypes.y == CONVOKE_DTYPE_UINT8);
    }
    OK(convoke_plan_scale_quantised(q.plan, q.weights, &q.scales, &q.scaled, &last_error));
    q.args.struct_size = sizeof q.args;
    q.args.x = q.x, q.args.x_len = info.x_len;
    q.args.weights = q.weights, q.args.scaled = q.scaled;
    q.args.y = q.y, q.args.y_len = info.y_len;
    q.args.workspace = aligned_memory(info.workspace_bytes), q.args.workspace_bytes = info.workspace_bytes;
    return q;
}

static inline void free_quantised(quantised *q)
{
    convoke_scaled_destroy(q->scaled), convoke_quantised_weights_destroy(q->weights), convoke_plan_destroy(q->plan);
    free(q->x), free(q->w), free(q->w_zero_point), free(q->residual), free(q->bias), free(q->w_scale), free(q->y), free(q->args.workspace);
}

/* The output channel of an element of W. */
static inline size_t channel_of(const layer *l, size_t i)
{
    size_t taps = (size_t)(l->w[2] * l->w[3]), rows = (size_t)l->w[1], per_group = (size_t)(l->w[0] / l->group);
    return l->is_transposed ? i / taps / rows / per_group * rows + i / taps % rows : i / taps / rows;
}

/* Sums by the definition: in double, which holds all of them. */
static inline definition quantised_sums(const quantised *q)
{
    const layer *l = q->l;
    size_t x_len = elements(l->x), w_len = elements(l->w), m_len = (size_t)l->y[1];
    double *x = (double *)aligned_memory(x_len * sizeof *x), *w = (double *)aligned_memory(w_len * sizeof *w);
    double *bias = (double *)aligned_memory(m_len * sizeof *bias);
    for (size_t i = 0; i < x_len; i++)
        x[i] = byte_value(q->dtypes.x, q->x[i]) - q->scales.x_zero_point;
    for (size_t i = 0; i < w_len; i++) {
        size_t m = q->pack.w_zero_point_len > 1 ? channel_of(l, i) : 0;
        w[i] = byte_value(q->dtypes.w, q->w[i]) - byte_value(q->dtypes.w, q->w_zero_point[m]);
    }
    for (size_t m = 0; m < m_len; m++)
        bias[m] = q->bias[m];
    definition sums = defined(l, CONVOKE_DTYPE_DOUBLE, x, w, bias);
    free(x), free(w), free(bias);
    return sums;
}

/* What a sum becomes. */
static inline bool is_requantised(const quantised *q, size_t i, double sum)
{
    if (q->dtypes.y == CONVOKE_DTYPE_INT32)
        return ((const int32_t *)q->y)[i] == sum;
    size_t m = q->scales.w_scale_len > 1 ? i / (size_t)(q->l->y[2] * q->l->y[3]) % (size_t)q->l->y[1] : 0;
    float scale = q->scales.x_scale * q->w_scale[m], scaled = (float)sum;
    scale /= q->scales.y_scale;
    scaled *= scale;
    if (q->dtypes.y == CONVOKE_DTYPE_FLOAT)
        return ((const float *)q->y)[i] == scaled;
    if (q->dtypes.y == CONVOKE_DTYPE_FLOAT16) {
        double step = ldexp(1, (int)fmax(logb((double)scaled), -14) - 10); /* between neighbours; logb(0) is -infinity */
        return element(q->dtypes.y, q->y, i) == rint((double)scaled / step) * step;
    }
    if (q->residual) {
        float ratio = q->args.residual_scale / q->scales.y_scale;
        ratio *= (float)(byte_value(q->dtypes.y, q->residual[i]) - q->args.residual_zero_point);
        scaled += ratio;
    }
    double least = q->dtypes.y == CONVOKE_DTYPE_INT8 ? -128 : 0;
    double value = fmin(fmax((double)rintf(scaled) + q->scales.y_zero_point, least), least + 255);
    uint8_t bits = (uint8_t)(int32_t)value;
    if (q->scales.y_table)
        bits = ((const uint8_t *)q->scales.y_table)[bits];
    return ((const uint8_t *)q->y)[i] == bits;
}

static inline void run_quantised(const quantised *q)
{
    memset(q->y, 0xff, q->y_bytes);
    OK(convoke_plan_run_quantised(q->plan, &q->args, &last_error));
    definition sums = quantised_sums(q);
    for (size_t i = 0; i < elements(q->l->y); i++)
        CHECK(is_requantised(q, i, sums.y[i]));
    free_definition(sums);
}

static inline convoke_quantised_dtypes dtypes_of(uint32_t x, uint32_t w, uint32_t y)
{
    convoke_quantised_dtypes dtypes = {x, w, y};
    return dtypes;
}

/* Every layer, in all types by turns, and one layer in each of them. */
static inline void check_quantised_layers(void)
{
    for (size_t i = 0; i < LAYER_COUNT + 4 * OUT_DTYPE_COUNT; i++) {
        const layer *l = &LAYERS[i < LAYER_COUNT ? i : 2];
        quantised q = quantised_of(l, dtypes_of(IN_DTYPES[i / 2 % 2], IN_DTYPES[i % 2], OUT_DTYPES[i / 4 % OUT_DTYPE_COUNT]),
                                   NULL, i % 3);
        check_output_shape(q.plan, l->y);
        run_quantised(&q);
        free_quantised(&q);
    }
}

static inline void check_quantised_options(void)
{
    convoke_plan_options options = default_options();
    options.threads = 3, options.isa = "portable";
    quantised q = quantised_of(&LARGE, dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[0]), &options, true);
    convoke_plan_info info = info_of(q.plan);
    CHECK(info.threads == 3 && info.packed_bytes == 0 && info.workspace_bytes > 0 && !*info.algorithm && !*info.kernel);
    CHECK(explains(q.plan, "portable"));
    run_quantised(&q);
    size_t calls = 0;
    convoke_executor executor = executor_of(one_by_one, 3);
    executor.context = &calls;
    q.args.executor = &executor;
    run_quantised(&q);
    CHECK(calls > 1 && calls <= 3);
    executor = executor_of(no_call, 3);
    FAILS(CONVOKE_STATUS_THREADS, "has returned without having called its task",
          convoke_plan_run_quantised(q.plan, &q.args, &last_error));
    free_quantised(&q);

    /* Channels last: the same bytes in another order. */
    const layer *l = &LAYERS[0];
    options = default_options();
    options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    q = quantised_of(l, dtypes_of(IN_DTYPES[1], IN_DTYPES[0], OUT_DTYPES[1]), &options, true);
    OK(convoke_plan_run_quantised(q.plan, &q.args, &last_error));
    int8_t *last = (int8_t *)q.y, *first = (int8_t *)aligned_memory(q.y_bytes);
    size_t plane = (size_t)(l->y[2] * l->y[3]), m_len = (size_t)l->y[1];
    for (size_t i = 0; i < q.y_bytes; i++)
        first[(i / m_len / plane * m_len + i % m_len) * plane + i / m_len % plane] = last[i];
    memcpy(q.y, first, q.y_bytes);
    definition sums = quantised_sums(&q);
    for (size_t i = 0; i < q.y_bytes; i++)
        CHECK(is_requantised(&q, i, sums.y[i]));
    free(first), free_definition(sums);
    free_quantised(&q);
}

/* Outputs of both types of bytes that go through a table. */
static inline void check_tables(void)
{
    uint8_t *table = bytes_that_look_random(256, 4);
    for (size_t i = 0; i < 2; i++) {
        quantised q = quantised_of(&LAYERS[0], dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[i]), NULL, true);
        convoke_scaled_destroy(q.scaled);
        q.scales.y_table = table;
        OK(convoke_plan_scale_quantised(q.plan, q.weights, &q.scales, &q.scaled, &last_error));
        q.args.scaled = q.scaled;
        run_quantised(&q);
        free_quantised(&q);
    }
    quantised q = quantised_of(&LAYERS[0], dtypes_of(IN_DTYPES[0], IN_DTYPES[1], CONVOKE_DTYPE_FLOAT), NULL, true);
    convoke_scaled *scaled = NULL;
    q.scales.y_table = table;
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: y_table is for outputs of uint8 and int8 alone",
          convoke_plan_scale_quantised(q.plan, q.weights, &q.scales, &scaled, &last_error));
    free_quantised(&q), free(table);
}

/* Copies bytes between a tensor in ONNX's order and one with channels last, whose pixels are `pixel` bytes apart. */
static inline void move_last(const int64_t *shape, uint8_t *first, uint8_t *last, size_t pixel, bool is_back)
{
    size_t c_len = (size_t)shape[1], plane = (size_t)(shape[2] * shape[3]);
    for (size_t i = 0; i < elements(shape); i++) {
        uint8_t *other = &last[(i / plane / c_len * plane + i % plane) * pixel + i / plane % c_len];
        *(is_back ? &first[i] : other) = *(is_back ? other : &first[i]);
    }
}

/* A residual, and then X, residual and Y as channels of wider tensors, for both types of bytes. */
static inline void check_residuals(void)
{
    for (size_t i = 0; i < 4; i++) {
        const layer *l = &LAYERS[i % 2 ? 6 : 0];
        convoke_plan_options options = default_options();
        options.x_layout = options.y_layout = i < 2 ? CONVOKE_LAYOUT_CHANNELS_FIRST : CONVOKE_LAYOUT_CHANNELS_LAST;
        quantised q = quantised_of(l, dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[i % 2]), &options, true);
        size_t y_len = elements(l->y), c = (size_t)l->x[1], m = (size_t)l->y[1];
        q.residual = bytes_that_look_random(y_len, 5);
        q.args.residual = q.residual, q.args.residual_len = y_len;
        q.args.residual_scale = 0.11f, q.args.residual_zero_point = 9;
        if (i < 2) {
            run_quantised(&q);
            free_quantised(&q);
            continue;
        }
        size_t x_bytes = elements(l->x) / c * (c + 2), r_bytes = y_len / m * (m + 3), y_bytes = y_len / m * (m + 1);
        uint8_t *x = bytes_that_look_random(x_bytes, 6), *r = bytes_that_look_random(r_bytes, 7);
        uint8_t *y = bytes_that_look_random(y_bytes, 8), *before = bytes_that_look_random(y_bytes, 8);
        move_last(l->x, q.x, x, c + 2, false), move_last(l->y, q.residual, r, m + 3, false);
        q.args.x = x, q.args.x_len = x_bytes, q.args.x_pixel_stride = c + 2;
        q.args.residual = r, q.args.residual_len = r_bytes, q.args.residual_pixel_stride = m + 3;
        q.args.y = y, q.args.y_len = y_bytes, q.args.y_pixel_stride = m + 1;
        OK(convoke_plan_run_quantised(q.plan, &q.args, &last_error));
        move_last(l->y, (uint8_t *)q.y, y, m + 1, true);
        definition sums = quantised_sums(&q);
        for (size_t k = 0; k < y_len; k++)
            CHECK(is_requantised(&q, k, sums.y[k]));
        for (size_t k = m; k < y_bytes; k += m + 1)
            CHECK(y[k] == before[k]);
        free(x), free(r), free(y), free(before), free_definition(sums);
        free_quantised(&q);
    }
}

/* No zero points of W, no bias, and no image. */
static inline void check_absent(void)
{
    const layer *l = &LAYERS[4];
    convoke_quantised_dtypes dtypes = dtypes_of(IN_DTYPES[0], IN_DTYPES[1], CONVOKE_DTYPE_INT32);
    quantised q = quantised_of(l, dtypes, NULL, false);
    convoke_quantised_weights_destroy(q.weights), convoke_scaled_destroy(q.scaled);
    q.pack.w_zero_point = q.pack.bias = NULL, q.pack.w_zero_point_len = q.pack.bias_len = 0;
    OK(convoke_plan_pack_quantised(q.plan, &q.pack, &q.weights, &last_error));
    OK(convoke_plan_scale_quantised(q.plan, q.weights, &q.scales, &q.scaled, &last_error));
    q.args.weights = q.weights, q.args.scaled = q.scaled;
    memset(q.w_zero_point, 0, 1), memset(q.bias, 0, (size_t)l->y[1] * sizeof *q.bias);
    run_quantised(&q);
    free_quantised(&q);

    layer empty = *l;
    empty.x[0] = empty.y[0] = 0;
    q = quantised_of(&empty, dtypes, NULL, false);
    run_quantised(&q);
    free_quantised(&q);
}

static inline void check_quantised_plan_errors(void)
{
    const layer *l = &LAYERS[0];
    convoke_operator *op = operator_of(l);
    convoke_quantised_dtypes right = dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[0]), dtypes = right;
    convoke_plan_options options = default_options();
    convoke_plan *plan = (convoke_plan *)&options;
    convoke_error *error = &last_error;

#define WRONG(change, status, part) \
    (dtypes = right, options = default_options(), (void)(change), \
     check_status(convoke_plan_create_quantised(op, &options, &dtypes, l->x, 4, &plan, error), (status), (part), \
                  #change, __FILE__, __LINE__), CHECK(!plan))
    WRONG(dtypes.x = CONVOKE_DTYPE_FLOAT, CONVOKE_STATUS_INVALID_ARGUMENT, "x of dtypes: float is none of uint8, int8");
    WRONG(dtypes.w = CONVOKE_DTYPE_INT32, CONVOKE_STATUS_INVALID_ARGUMENT, "w of dtypes: int32 is none of uint8, int8");
    WRONG(dtypes.y = CONVOKE_DTYPE_DOUBLE, CONVOKE_STATUS_INVALID_ARGUMENT,
          "y of dtypes: double is none of uint8, int8, int32, float, float16");
    WRONG(dtypes.w = 7, CONVOKE_STATUS_INVALID_ARGUMENT, "w of dtypes: 7 is not a convoke_dtype");
    WRONG(options.activation = CONVOKE_ACTIVATION_RELU, CONVOKE_STATUS_UNAVAILABLE, "Conv: a plan of bytes has no activation");
    WRONG(options.workspace_limit = 1, CONVOKE_STATUS_UNAVAILABLE, "Conv: a plan of bytes has no limit of the workspace");
    WRONG(options.separate_images = 1, CONVOKE_STATUS_UNAVAILABLE, "Conv: a quantised plan has no separate_images");
    WRONG(options.threads = 1025, CONVOKE_STATUS_UNAVAILABLE, "at most 1024");
    WRONG(options.struct_size = 8, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_plan_options: struct_size is 8");
#undef WRONG
    const int64_t x[] = {2, 4, 9, 8};
    FAILS(CONVOKE_STATUS_INVALID_SHAPE, "X has C = 4 channels",
          convoke_plan_create_quantised(op, NULL, &right, x, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is NULL",
          convoke_plan_create_quantised(NULL, NULL, &right, l->x, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "dtypes is NULL",
          convoke_plan_create_quantised(op, NULL, NULL, l->x, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "x_dims is NULL",
          convoke_plan_create_quantised(op, NULL, &right, NULL, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL",
          convoke_plan_create_quantised(op, NULL, &right, l->x, 4, NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "dtype: uint8 is for convoke_plan_create_quantised alone",
          convoke_plan_create(op, NULL, CONVOKE_DTYPE_UINT8, l->x, 4, &plan, error));
    convoke_operator_destroy(op);
}

static inline void check_quantised_weight_errors(void)
{
    quantised q = quantised_of(&LAYERS[0], dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[0]), NULL, true);
    const convoke_quantised_pack_args right = q.pack;
    const convoke_scales right_scales = q.scales;
    int guard = 0;
    convoke_quantised_weights *weights = (convoke_quantised_weights *)&guard;
    convoke_scaled *scaled = (convoke_scaled *)&guard;
    convoke_error *error = &last_error;

#define WRONG(change, status, part) \
    (q.pack = right, (void)(change), \
     check_status(convoke_plan_pack_quantised(q.plan, &q.pack, &weights, error), (status), (part), #change, __FILE__, \
                  __LINE__), CHECK(!weights))
    WRONG(q.pack.struct_size = 8, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_quantised_pack_args: struct_size is 8");
    WRONG(q.pack.w = NULL, CONVOKE_STATUS_INVALID_POINTER, "w is NULL");
    WRONG(q.pack.w_len--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: W has 314 elements, its shape [7, 5, 3, 3] asks for 315");
    WRONG(q.pack.w_len = SIZE_MAX, CONVOKE_STATUS_OVERFLOW, "w has");
    WRONG(q.pack.w_zero_point = NULL, CONVOKE_STATUS_INVALID_POINTER, "w_zero_point is NULL");
    WRONG(q.pack.w_zero_point_len = 0, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: w_zero_point has 0 elements, not 1 or 7");
    WRONG(q.pack.w_zero_point_len = 6, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: w_zero_point has 6 elements, not 1 or 7");
    WRONG(q.pack.bias = NULL, CONVOKE_STATUS_INVALID_POINTER, "bias is NULL");
    WRONG(q.pack.bias = MISALIGNED(int32_t), CONVOKE_STATUS_INVALID_POINTER, "bias is at an address that is not a multiple of 4");
    WRONG(q.pack.bias_len = 0, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: B has 0 elements, its shape [7] asks for 7");
    WRONG(q.bias[3] = INT32_MAX, CONVOKE_STATUS_OVERFLOW, "Conv: sums of output channel 3 may reach");
#undef WRONG
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_pack_quantised(NULL, &right, &weights, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_quantised_pack_args is NULL",
          convoke_plan_pack_quantised(q.plan, NULL, &weights, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "weights is NULL", convoke_plan_pack_quantised(q.plan, &right, NULL, error));

#define WRONG(change, status, part) \
    (q.scales = right_scales, (void)(change), \
     check_status(convoke_plan_scale_quantised(q.plan, q.weights, &q.scales, &scaled, error), (status), (part), #change, \
                  __FILE__, __LINE__), CHECK(!scaled))
    WRONG(q.scales.struct_size = 0, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_scales: struct_size is 0");
    WRONG(q.scales.x_scale = 0, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: x_scale is 0, it must be positive and finite");
    WRONG(q.scales.y_scale = NAN, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: y_scale is NaN");
    WRONG(q.w_scale[2] = -1, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: w_scale is -1");
    WRONG((q.w_scale[2] = 1e38f, q.scales.x_scale = 1e3f), CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: the scale of output channel 2");
    WRONG(q.scales.w_scale = NULL, CONVOKE_STATUS_INVALID_POINTER, "w_scale is NULL");
    WRONG(q.scales.w_scale_len = 3, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: w_scale has 3 elements, not 1 or 7");
    WRONG(q.scales.x_zero_point = 256, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: x_zero_point is 256, must be from 0 to 255");
    WRONG(q.scales.y_zero_point = -1, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: y_zero_point is -1, must be from 0 to 255");
#undef WRONG
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL",
          convoke_plan_scale_quantised(NULL, q.weights, &right_scales, &scaled, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "weights is NULL",
          convoke_plan_scale_quantised(q.plan, NULL, &right_scales, &scaled, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_scales is NULL",
          convoke_plan_scale_quantised(q.plan, q.weights, NULL, &scaled, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "scaled is NULL",
          convoke_plan_scale_quantised(q.plan, q.weights, &right_scales, NULL, error));
    convoke_quantised_weights_destroy(NULL), convoke_scaled_destroy(NULL);
    free_quantised(&q);
}

static inline void check_quantised_run_errors(void)
{
    convoke_quantised_dtypes dtypes = dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[0]);
    quantised q = quantised_of(&LAYERS[0], dtypes, NULL, true), same = quantised_of(&LAYERS[0], dtypes, NULL, true);
    quantised other = quantised_of(&LAYERS[1], dtypes, NULL, true);
    dtypes.y = CONVOKE_DTYPE_FLOAT;
    quantised floats = quantised_of(&LAYERS[0], dtypes, NULL, true);
    const convoke_quantised_run_args right = q.args;
    convoke_executor executor = executor_of(one_by_one, 2);
    CHECK(right.workspace_bytes > 0);
    memset(q.y, 0xff, q.y_bytes);

#define WRONG(change, status, part) \
    (q.args = right, (void)(change), \
     check_status(convoke_plan_run_quantised(q.plan, &q.args, &last_error), (status), (part), #change, __FILE__, \
                  __LINE__), CHECK(all_bytes_are(q.y, q.y_bytes, 0xff)))
    WRONG(q.args.struct_size = 8, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_quantised_run_args: struct_size is 8");
    WRONG(q.args.x = NULL, CONVOKE_STATUS_INVALID_POINTER, "x is NULL");
    WRONG(q.args.x_len--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: X has 719 elements");
    WRONG(q.args.x_len = SIZE_MAX, CONVOKE_STATUS_OVERFLOW, "x has");
    WRONG(q.args.y = NULL, CONVOKE_STATUS_INVALID_POINTER, "y is NULL");
    WRONG(q.args.y_len--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: Y has 1007 elements");
    WRONG(q.args.weights = NULL, CONVOKE_STATUS_INVALID_POINTER, "weights is NULL");
    WRONG(q.args.weights = MISALIGNED(const convoke_quantised_weights), CONVOKE_STATUS_INVALID_POINTER,
          "weights is at an address");
    WRONG(q.args.weights = other.weights, CONVOKE_STATUS_PACKED_MISMATCH,
          "Conv: the weights are not those of a plan of this layer: pack again");
    WRONG(q.args.scaled = NULL, CONVOKE_STATUS_INVALID_POINTER, "scaled is NULL");
    WRONG(q.args.scaled = same.scaled, CONVOKE_STATUS_PACKED_MISMATCH, "Conv: the scales were made for other weights");
    WRONG(q.args.scaled = floats.scaled, CONVOKE_STATUS_PACKED_MISMATCH,
          "Conv: the scales were made by a plan of other types");
    WRONG((q.args.x = q.y, q.args.y = q.y), CONVOKE_STATUS_INVALID_POINTER, "y overlaps x");
    WRONG((q.args.residual = q.y, q.args.residual_len = 1008), CONVOKE_STATUS_INVALID_POINTER, "y overlaps the residual");
    WRONG((q.args.residual = right.workspace, q.args.residual_len = 1008), CONVOKE_STATUS_INVALID_POINTER,
          "workspace overlaps the residual");
    WRONG(q.args.residual_len = 1008, CONVOKE_STATUS_INVALID_POINTER, "residual is NULL");
    WRONG((q.args.residual = q.w, q.args.residual_len = 315, q.args.residual_scale = 1), CONVOKE_STATUS_BUFFER_LENGTH,
          "Conv: the residual has 315 elements");
    WRONG((q.args.residual = q.w, q.args.residual_len = 315, q.args.residual_zero_point = 256),
          CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: residual_zero_point is 256, must be from 0 to 255");
    WRONG(q.args.x_pixel_stride = 9, CONVOKE_STATUS_INVALID_SHAPE, "Conv: X has a pixel stride of 9 and its channels first");
    WRONG(q.args.y_pixel_stride = 9, CONVOKE_STATUS_INVALID_SHAPE, "Conv: Y has a pixel stride of 9 and its channels first");
    WRONG(q.args.workspace = NULL, CONVOKE_STATUS_INVALID_POINTER, "workspace is NULL");
    WRONG(q.args.workspace = (char *)right.workspace + 32, CONVOKE_STATUS_INVALID_POINTER,
          "workspace is at an address that is not a multiple of 64");
    WRONG(q.args.workspace = q.y, CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG(q.args.workspace = q.x, CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG(q.args.workspace_bytes = 0, CONVOKE_STATUS_WORKSPACE, "the workspace has 0 bytes");
    WRONG(q.args.executor = &executor, CONVOKE_STATUS_THREADS, "Conv: the plan was made for 1 thread, the run has 2");
    WRONG((executor = executor_of(NULL, 1), q.args.executor = &executor), CONVOKE_STATUS_INVALID_POINTER,
          "parallel_for of convoke_executor is NULL");
#undef WRONG
    floats.args.residual = q.w, floats.args.residual_len = 315;
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: a residual is for outputs of uint8 and int8 alone",
          convoke_plan_run_quantised(floats.plan, &floats.args, &last_error));
    q.args = right;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_run_quantised(NULL, &q.args, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_quantised_run_args is NULL",
          convoke_plan_run_quantised(q.plan, NULL, &last_error));
    /* Weights that were packed by another plan of the layer will do, with their scales. */
    q.args.weights = same.weights, q.args.scaled = same.scaled;
    run_quantised(&q);
    free_quantised(&q), free_quantised(&same), free_quantised(&other), free_quantised(&floats);
}

/* A plan of floats for a function of quantised ones, and the other way round. */
static inline void check_other_plans(void)
{
    quantised q = quantised_of(&LAYERS[0], dtypes_of(IN_DTYPES[0], IN_DTYPES[1], OUT_DTYPES[0]), NULL, true);
    fixture f = fixture_of(&LAYERS[0], NULL);
    convoke_pack_args pack;
    memset(&pack, 0, sizeof pack);
    pack.struct_size = sizeof pack;
    convoke_packed *packed = NULL;
    convoke_quantised_weights *weights = NULL;
    convoke_scaled *scaled = NULL;
    const char *for_floats = "plan is a quantised one, and the function is for floats";
    const char *for_bytes = "plan is for floats, and the function is for quantised ones";
    const convoke_status status = CONVOKE_STATUS_INVALID_ARGUMENT;
    FAILS(status, for_floats, convoke_plan_pack(q.plan, &pack, &packed, &last_error));
    FAILS(status, for_floats, convoke_plan_accepts(q.plan, f.packed, &last_error));
    FAILS(status, for_floats, convoke_plan_run(q.plan, &f.args, &last_error));
    FAILS(status, for_bytes, convoke_plan_pack_quantised(f.plan, &q.pack, &weights, &last_error));
    FAILS(status, for_bytes, convoke_plan_scale_quantised(f.plan, q.weights, &q.scales, &scaled, &last_error));
    FAILS(status, for_bytes, convoke_plan_run_quantised(f.plan, &q.args, &last_error));
    free_fixture(&f), free_quantised(&q);
}

static inline void check_quantised(void)
{
    check_quantised_layers();
    check_quantised_options();
    check_tables();
    check_residuals();
    check_absent();
    check_quantised_plan_errors();
    check_quantised_weight_errors();
    check_quantised_run_errors();
    check_other_plans();
}

#endif
