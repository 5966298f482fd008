/* Every way to compute, compared with the definition. */
#ifndef RESULTS_H
#define RESULTS_H

#include "check.h"

/* --- Every layer and type ------------------------------------------------------------------- */

static double relu(double y) { return y > 0 ? y : 0; }
static double clip(double y) { return y < -1.5 ? -1.5 : y > 20 ? 20 : y; }
static double leaky_relu(double y) { return y < 0 ? 0.25 * y : y; }
static double hard_swish(double y) { return y * fmin(fmax(y / 6 + 0.5, 0), 1); }
static double silu(double y) { return y / (1 + exp(-y)); }
static double sigmoid(double y) { return 1 / (1 + exp(-y)); }
static double gelu(double y) { return y / 2 * (1 + erf(y / sqrt(2))); }
static double gelu_tanh(double y) { return y / 2 * (1 + tanh(0.79788456080286536 * (y + 0.044715 * y * y * y))); }
static double mish(double y) { return y * tanh(log1p(exp(y))); }

typedef struct activation {
    uint32_t number;
    double (*function)(double);
} activation;

static const activation ACTIVATIONS[] = {
    {CONVOKE_ACTIVATION_NONE, NULL},        {CONVOKE_ACTIVATION_RELU, relu},
    {CONVOKE_ACTIVATION_CLIP, clip},        {CONVOKE_ACTIVATION_LEAKY_RELU, leaky_relu},
    {CONVOKE_ACTIVATION_SILU, silu},        {CONVOKE_ACTIVATION_HARD_SWISH, hard_swish},
    {CONVOKE_ACTIVATION_SIGMOID, sigmoid},  {CONVOKE_ACTIVATION_TANH, tanh},
    {CONVOKE_ACTIVATION_GELU, gelu},        {CONVOKE_ACTIVATION_GELU_TANH, gelu_tanh},
    {CONVOKE_ACTIVATION_MISH, mish},
};
enum { ACTIVATION_COUNT = sizeof ACTIVATIONS / sizeof ACTIVATIONS[0] };

static const uint32_t DTYPES[] = {CONVOKE_DTYPE_FLOAT, CONVOKE_DTYPE_DOUBLE, CONVOKE_DTYPE_FLOAT16,
                                  CONVOKE_DTYPE_BFLOAT16};

static inline void check_output_shape(const convoke_plan *plan, const int64_t *expected)
{
    size_t rank = 0;
    OK(convoke_plan_output_shape(plan, NULL, 0, &rank, &last_error));
    CHECK(rank == 4 && info_of(plan).y_rank == 4);
    int64_t dims[5] = {-1, -1, -1, -1, -1};
    OK(convoke_plan_output_shape(plan, dims, 5, &rank, &last_error));
    CHECK(!memcmp(dims, expected, 4 * sizeof *dims) && dims[4] == -1);
}

/* A layer with and without bias, then with a residual, also in place. */
static inline void check_layer(const layer *l, uint32_t dtype, const activation *act)
{
    convoke_operator *op = operator_of(l);
    convoke_plan_options options = default_options();
    options.activation = act->number;
    options.clip_min = -1.5f, options.clip_max = 20, options.leaky_slope = 0.25f;
    convoke_plan *plan = plan_of(op, &options, dtype, l->x);
    convoke_operator_destroy(op);
    check_output_shape(plan, l->y);
    size_t y_len = elements(l->y), y_bytes = y_len * bytes_of(dtype);
    void *x = tensor_of(dtype, elements(l->x), 1), *w = tensor_of(dtype, elements(l->w), 2);
    void *bias = tensor_of(dtype, (size_t)l->y[1], 3), *residual = tensor_of(dtype, y_len, 4);
    void *y = aligned_memory(y_bytes), *memory[2];
    convoke_packed *plain = packed_of(plan, w, NULL, &memory[0]), *biased = packed_of(plan, w, bias, &memory[1]);
    OK(convoke_plan_accepts(plan, plain, &last_error));

    definition sums = defined(l, dtype, x, w, NULL), with_bias = defined(l, dtype, x, w, bias);
    convoke_run_args args = run_args(plan, plain, x, y);
    OK(convoke_plan_run(plan, &args, &last_error));
    CHECK(is_defined(sums, l, dtype, y, NULL, act->function));
    args.packed = biased;
    OK(convoke_plan_run(plan, &args, &last_error));
    CHECK(is_defined(with_bias, l, dtype, y, NULL, act->function));
    args.residual = residual, args.residual_len = y_len;
    OK(convoke_plan_run(plan, &args, &last_error));
    CHECK(is_defined(with_bias, l, dtype, y, residual, act->function));
    void *in_place = aligned_memory(y_bytes);
    memcpy(in_place, residual, y_bytes);
    args.residual = in_place, args.y = in_place;
    OK(convoke_plan_run(plan, &args, &last_error));
    CHECK(!memcmp(in_place, y, y_bytes));

    free_definition(sums), free_definition(with_bias);
    convoke_packed_destroy(plain), convoke_packed_destroy(biased);
    convoke_plan_destroy(plan);
    free(x), free(w), free(bias), free(residual), free(y), free(in_place);
    free(memory[0]), free(memory[1]), free(args.workspace);
}

static inline void check_layers(void)
{
    for (int i = 0; i < LAYER_COUNT; i++)
        for (size_t t = 0; t < sizeof DTYPES / sizeof DTYPES[0]; t++)
            check_layer(&LAYERS[i], DTYPES[t], &ACTIVATIONS[(i + (int)t) % ACTIVATION_COUNT]);
    for (int a = 0; a < ACTIVATION_COUNT; a++)
        check_layer(&LAYERS[4], CONVOKE_DTYPE_FLOAT, &ACTIVATIONS[a]);
}

/* --- A layer in float, with what it needs --------------------------------------------------- */

typedef struct fixture {
    const layer *l;
    convoke_operator *op;
    convoke_plan *plan;
    convoke_packed *packed;
    convoke_run_args args;
    void *x, *w, *bias, *y, *memory;
    size_t y_bytes;
} fixture;

static inline fixture fixture_of(const layer *l, const convoke_plan_options *options)
{
    fixture f;
    memset(&f, 0, sizeof f);
    f.l = l;
    f.op = operator_of_desc(l);
    f.plan = plan_of(f.op, options, CONVOKE_DTYPE_FLOAT, l->x);
    f.x = tensor_of(CONVOKE_DTYPE_FLOAT, elements(l->x), 1);
    f.w = tensor_of(CONVOKE_DTYPE_FLOAT, elements(l->w), 2);
    f.bias = tensor_of(CONVOKE_DTYPE_FLOAT, (size_t)l->y[1], 3);
    f.y_bytes = elements(l->y) * sizeof(float);
    f.y = aligned_memory(f.y_bytes);
    f.packed = packed_of(f.plan, f.w, f.bias, &f.memory);
    f.args = run_args(f.plan, f.packed, f.x, f.y);
    return f;
}

static inline void run_fixture(const fixture *f)
{
    OK(convoke_plan_run(f->plan, &f->args, &last_error));
    definition sums = defined(f->l, CONVOKE_DTYPE_FLOAT, f->x, f->w, f->bias);
    CHECK(is_defined(sums, f->l, CONVOKE_DTYPE_FLOAT, f->y, NULL, NULL));
    free_definition(sums);
}

static inline void free_fixture(fixture *f)
{
    convoke_packed_destroy(f->packed);
    convoke_plan_destroy(f->plan);
    convoke_operator_destroy(f->op);
    free(f->x), free(f->w), free(f->bias), free(f->y), free(f->memory), free(f->args.workspace);
}

/* --- Attributes by a struct, options, explanation ------------------------------------------- */

static inline void check_descs(void)
{
    for (int i = 0; i < LAYER_COUNT; i++) {
        fixture f = fixture_of(&LAYERS[i], NULL);
        check_output_shape(f.plan, f.l->y);
        run_fixture(&f);
        free_fixture(&f);
    }
}

/* output_shape, by both ways. */
static inline void check_shape_of_transposed(void)
{
    const int64_t w[] = {1, 2, 3, 3}, x[] = {1, 1, 3, 3}, strides[] = {3, 2}, shape[] = {10, 8}, y[] = {1, 2, 10, 8};
    convoke_operator *ops[2] = {NULL, NULL};
    OK(convoke_operator_create("ConvTranspose", 11, w, 4, &ops[0], &last_error));
    OK(convoke_operator_set_ints(ops[0], "strides", strides, 2, &last_error));
    OK(convoke_operator_set_ints(ops[0], "output_shape", shape, 2, &last_error));
    convoke_operator_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.struct_size = sizeof desc;
    desc.op_type = "ConvTranspose", desc.opset = 11;
    desc.w_dims.values = w, desc.w_dims.len = 4;
    desc.strides.values = strides, desc.strides.len = 2;
    desc.output_shape.values = shape, desc.output_shape.len = 2;
    desc.kernel_shape.values = w + 2, desc.kernel_shape.len = 2;
    OK(convoke_operator_create_from_desc(&desc, &ops[1], &last_error));
    for (int i = 0; i < 2; i++) {
        convoke_plan *plan = plan_of(ops[i], NULL, CONVOKE_DTYPE_FLOAT, x);
        check_output_shape(plan, y);
        convoke_plan_destroy(plan);
        convoke_operator_destroy(ops[i]);
    }
}

static inline bool explains(const convoke_plan *plan, const char *part)
{
    size_t length = 0;
    OK(convoke_plan_explain(plan, NULL, 0, &length, &last_error));
    char *text = (char *)malloc(length + 1);
    CHECK(text);
    OK(convoke_plan_explain(plan, text, length + 1, &length, &last_error));
    CHECK(strlen(text) == length);
    bool is_found = strstr(text, part);
    free(text);
    return is_found;
}

static inline void check_options(void)
{
    convoke_plan_options options = default_options();
    options.isa = "portable";
    options.algorithm = "im2col:native";
    options.accuracy = CONVOKE_ACCURACY_STRICT;
    fixture f = fixture_of(&LAYERS[0], &options);
    convoke_plan_info info = info_of(f.plan);
    CHECK(!strcmp(info.isa, "portable") && !strcmp(info.algorithm, "im2col:native") && strlen(info.kernel) > 0);
    CHECK(explains(f.plan, "picked im2col:native") && explains(f.plan, "ISA portable"));
    CHECK(info.threads == 1 && info.packed_alignment == 64 && info.workspace_alignment == 64);
    CHECK(info.packed_bytes % 64 == 0 && info.workspace_bytes % 64 == 0);
    CHECK(info.x_len == elements(f.l->x) && info.w_len == elements(f.l->w) && info.bias_len == 7);
    CHECK(info.y_len == elements(f.l->y));
    run_fixture(&f);
    free_fixture(&f);

    options = default_options();
    options.max_isa = "portable";
    options.accuracy = CONVOKE_ACCURACY_FAST;
    options.threads = 3;
    f = fixture_of(&LAYERS[0], &options);
    CHECK(!strcmp(info_of(f.plan).isa, "portable") && info_of(f.plan).threads == 3);
    run_fixture(&f);
    free_fixture(&f);

    /* Without workspace there are always the loops of the definition. */
    options = default_options();
    options.workspace_limit = 1;
    f = fixture_of(&LAYERS[0], &options);
    CHECK(info_of(f.plan).workspace_bytes == 0);
    free(f.args.workspace);
    f.args.workspace = NULL;
    run_fixture(&f);
    free_fixture(&f);
}

/* A struct of a later version of the header, whose new field is not set, and one of the first version,
 * which ends before fields of this one. */
static inline void check_later_structs(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL);
    struct {
        convoke_plan_info known;
        size_t more;
    } info;
    memset(&info, 0xff, sizeof info);
    info.known.struct_size = sizeof info;
    OK(convoke_plan_get_info(f.plan, &info.known, &last_error));
    CHECK(info.more == 0 && info.known.struct_size == sizeof info && info.known.y_len == elements(f.l->y));
    struct {
        convoke_run_args known;
        size_t more;
    } args = {f.args, 0};
    args.known.struct_size = sizeof args;
    OK(convoke_plan_run(f.plan, &args.known, &last_error));
    args.more = 1;
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "a field is set that this version of the library does not have",
          convoke_plan_run(f.plan, &args.known, &last_error));
    f.args.struct_size = offsetof(convoke_run_args, x_pixel_stride);
    f.args.x_pixel_stride = f.args.residual_pixel_stride = f.args.y_pixel_stride = 1;
    run_fixture(&f);
    free_fixture(&f);
}

/* --- Packed weights ------------------------------------------------------------------------- */

/* Weights are written to a file, read by another process, and used for images of another size. */
static inline void check_saved(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL);
    size_t bytes = info_of(f.plan).packed_bytes;
    FILE *file = tmpfile();
    CHECK(file && fwrite(f.memory, 1, bytes, file) == bytes);
    rewind(file);
    void *loaded = aligned_memory(bytes);
    CHECK(fread(loaded, 1, bytes, file) == bytes);
    fclose(file);
    convoke_packed *opened = NULL;
    OK(convoke_packed_open(CONVOKE_DTYPE_FLOAT, loaded, bytes, &opened, &last_error));
    OK(convoke_plan_accepts(f.plan, opened, &last_error));

    layer other = LAYERS[0];
    other.x[0] = 3, other.x[2] = 13, other.y[0] = 3, other.y[2] = 13;
    convoke_plan_options options = default_options();
    options.packed = opened;
    convoke_plan *plan = plan_of(f.op, &options, CONVOKE_DTYPE_FLOAT, other.x);
    OK(convoke_plan_accepts(plan, opened, &last_error));
    void *x = tensor_of(CONVOKE_DTYPE_FLOAT, elements(other.x), 9);
    void *y = aligned_memory(elements(other.y) * sizeof(float));
    convoke_run_args args = run_args(plan, opened, x, y);
    OK(convoke_plan_run(plan, &args, &last_error));
    definition sums = defined(&other, CONVOKE_DTYPE_FLOAT, x, f.w, f.bias);
    CHECK(is_defined(sums, &other, CONVOKE_DTYPE_FLOAT, y, NULL, NULL));

    /* The plan is not needed to keep the weights. */
    convoke_plan_destroy(plan);
    convoke_packed_destroy(opened);
    CHECK(!memcmp(loaded, f.memory, bytes));
    free_definition(sums);
    free(x), free(y), free(args.workspace), free(loaded);
    free_fixture(&f);
}

/* --- Images a stride apart ------------------------------------------------------------------ */

/* Two runs write the parts of a concatenation, from channels of a larger X. The second one adds
 * what the first one wrote, whose images lie between its own, and a third one adds in place. */
static inline void check_strides(void)
{
    const layer *l = &LAYERS[0];
    convoke_plan_options options = default_options();
    options.separate_images = 1;
    fixture f = fixture_of(l, &options);
    run_fixture(&f);
    CHECK(explains(f.plan, "X [1, 5, 9, 8]"));

    size_t images = 2, x_image = elements(l->x) / images, y_image = elements(l->y) / images;
    size_t x_stride = x_image + 30, y_stride = 2 * y_image + 5;
    float *x = (float *)tensor_of(CONVOKE_DTYPE_FLOAT, images * x_stride, 5);
    float *joined = (float *)aligned_memory(images * y_stride * sizeof(float));
    for (size_t i = 0; i < images; i++)
        memcpy(x + i * x_stride + 10, (float *)f.x + i * x_image, x_image * sizeof(float));
    f.args.x = x + 10, f.args.x_image_stride = x_stride, f.args.x_len = images * x_stride - 10;
    f.args.y_image_stride = y_stride, f.args.y_len = images * y_stride;
    f.args.y = joined;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    for (size_t i = 0; i < images; i++) {
        float *image = joined + i * y_stride;
        CHECK(!memcmp(image, (float *)f.y + i * y_image, y_image * sizeof(float)));
        CHECK(all_bytes_are(image + y_image, (y_stride - y_image) * sizeof(float), 0xff));
    }
    /* Y's neighbour in the concatenation is the residual: their images alternate. */
    f.args.residual = joined, f.args.residual_image_stride = y_stride, f.args.residual_len = images * y_stride;
    f.args.y = joined + y_image, f.args.y_len = images * y_stride - y_image;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    for (size_t i = 0; i < images * y_image; i++) {
        float once = ((float *)f.y)[i], twice = joined[i / y_image * y_stride + y_image + i % y_image];
        CHECK(fabsf(twice - 2 * once) <= 1e-3f * (1 + fabsf(once)));
    }
    /* In place. */
    f.args.residual = f.args.y = joined;
    f.args.y_len = f.args.residual_len = images * y_stride;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    for (size_t i = 0; i < images; i++)
        CHECK(!memcmp(joined + i * y_stride, joined + i * y_stride + y_image, y_image * sizeof(float)));

    /* Y's second image would be written where the residual's third row still is to be read. */
    f.args.residual = joined + 1, f.args.residual_len = images * y_stride - 1;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "y overlaps the residual",
          convoke_plan_run(f.plan, &f.args, &last_error));
    f.args.residual = NULL, f.args.residual_len = 0;
    f.args.y_len = y_stride + y_image - 1;
    FAILS(CONVOKE_STATUS_BUFFER_LENGTH, "Conv: y has 1516 elements, 2 images of 504 elements, 1013 apart, ask for 1517",
          convoke_plan_run(f.plan, &f.args, &last_error));
    f.args.y_image_stride = y_image - 1;
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: y_image_stride is 503, an image has 504 elements",
          convoke_plan_run(f.plan, &f.args, &last_error));
    free_fixture(&f);

    /* One image of a batch has any stride. */
    layer single = *l;
    single.x[0] = single.y[0] = 1;
    f = fixture_of(&single, NULL);
    run_fixture(&f);
    f.args.x = x + 10, f.args.x_image_stride = x_stride, f.args.x_len = 2 * x_stride - 10;
    f.args.y = joined, f.args.y_image_stride = y_stride, f.args.y_len = 2 * y_stride;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    CHECK(!memcmp(joined, f.y, y_image * sizeof(float)));
    /* As its own residual, and its strides differ: there is no next image. */
    f.args.residual = joined, f.args.residual_len = y_image;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    for (size_t i = 0; i < y_image; i++) {
        float once = ((float *)f.y)[i];
        CHECK(fabsf(joined[i] - 2 * once) <= 1e-3f * (1 + fabsf(once)));
    }
    f.args.residual_image_stride = SIZE_MAX;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    free_fixture(&f);
    free(x), free(joined);
}

/* --- Channels last -------------------------------------------------------------------------- */

/* A tensor with channels last, as channels of a wider one: pixels of `pixel` elements, of which the
 * tensor's begin behind `before` others. */
typedef struct spread {
    const int64_t *shape;
    size_t pixel, before;
    float *wide;
} spread;

static inline size_t pixels_of(const int64_t *shape)
{
    return elements(shape) / (size_t)shape[1];
}

/* Where an element lies, which is number `i` in ONNX's order. */
static inline float *place_of(const spread *s, size_t i)
{
    size_t plane = (size_t)(s->shape[2] * s->shape[3]), channels = (size_t)s->shape[1];
    size_t position = i / (channels * plane) * plane + i % plane;
    return s->wide + position * s->pixel + s->before + i / plane % channels;
}

/* Of a tensor in ONNX's order, or full of 0xff; the caller frees it. */
static inline spread spread_of(const int64_t *shape, size_t before, size_t behind, const void *tensor)
{
    spread s = {shape, before + (size_t)shape[1] + behind, before, NULL};
    s.wide = (float *)aligned_memory(pixels_of(shape) * s.pixel * sizeof(float));
    for (size_t i = 0; tensor && i < elements(shape); i++)
        *place_of(&s, i) = ((const float *)tensor)[i];
    return s;
}

/* Moves the elements to ONNX's order. What is between them must be as `spread_of` has left it. */
static inline void gather(spread *s, void *tensor)
{
    for (size_t i = 0; i < elements(s->shape); i++) {
        float *place = place_of(s, i);
        ((float *)tensor)[i] = *place;
        memset(place, 0xff, sizeof *place);
    }
    CHECK(all_bytes_are(s->wide, pixels_of(s->shape) * s->pixel * sizeof(float), 0xff));
}

/* From the first element of the tensor on. */
static inline size_t length_of(const spread *s)
{
    return pixels_of(s->shape) * s->pixel - s->before;
}

/* The stride of pixels that are not neighbours. */
static inline size_t stride_of(const spread *s)
{
    return s->pixel == (size_t)s->shape[1] ? 0 : s->pixel;
}

/* Has a run read X, and write Y, with channels last. */
static inline void set_x(convoke_run_args *args, const spread *x)
{
    args->x = x->wide + x->before, args->x_len = length_of(x), args->x_pixel_stride = stride_of(x);
}

static inline void set_y(convoke_run_args *args, const spread *y)
{
    args->y = y->wide + y->before, args->y_len = length_of(y), args->y_pixel_stride = stride_of(y);
}

static inline void set_residual(convoke_run_args *args, const spread *residual)
{
    args->residual = residual->wide + residual->before;
    args->residual_len = length_of(residual), args->residual_pixel_stride = stride_of(residual);
}

/* Moves what a run has written to ONNX's order, and compares it with the definition. */
static inline void check_gathered(const fixture *f, spread *y, const void *residual)
{
    gather(y, f->y);
    definition sums = defined(f->l, CONVOKE_DTYPE_FLOAT, f->x, f->w, f->bias);
    CHECK(is_defined(sums, f->l, CONVOKE_DTYPE_FLOAT, f->y, residual, NULL));
    free_definition(sums);
}

/* A layer with channels last in X and Y, which are channels of wider tensors if `more` is not 0: alone,
 * with a residual, and with what Y holds as the residual. */
static inline void check_last(const layer *l, uint32_t separate_images, size_t more)
{
    convoke_plan_options options = default_options();
    options.x_layout = options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    options.separate_images = separate_images;
    fixture f = fixture_of(l, &options);
    check_output_shape(f.plan, l->y);
    void *added = tensor_of(CONVOKE_DTYPE_FLOAT, elements(l->y), 4);
    spread x = spread_of(l->x, more, 2 * more, f.x), residual = spread_of(l->y, 3 * more, 0, added);
    spread y = spread_of(l->y, 2 * more, more, NULL);
    set_x(&f.args, &x), set_y(&f.args, &y);
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    check_gathered(&f, &y, NULL);
    set_residual(&f.args, &residual);
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    check_gathered(&f, &y, added);
    set_y(&f.args, &residual);
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    check_gathered(&f, &residual, added);
    free(added), free(x.wide), free(residual.wide), free(y.wide);
    free_fixture(&f);
}

/* X and Y in different layouts. */
static inline void check_layout_of_each(const layer *l)
{
    convoke_plan_options options = default_options();
    options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    fixture f = fixture_of(l, &options);
    spread x = spread_of(l->x, 1, 0, f.x), y = spread_of(l->y, 0, 3, NULL);
    set_y(&f.args, &y);
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    check_gathered(&f, &y, NULL);
    free_fixture(&f);

    options.x_layout = CONVOKE_LAYOUT_CHANNELS_LAST, options.y_layout = CONVOKE_LAYOUT_CHANNELS_FIRST;
    f = fixture_of(l, &options);
    set_x(&f.args, &x);
    run_fixture(&f);
    free(x.wide), free(y.wide);
    free_fixture(&f);
}

/* Two layers write the channels of one tensor side by side. */
static inline void check_concat(void)
{
    convoke_plan_options options = default_options();
    options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    fixture f = fixture_of(&LAYERS[4], &options);
    size_t m = (size_t)f.l->y[1], pixels = pixels_of(f.l->y);
    float *joined = (float *)aligned_memory(2 * m * pixels * sizeof(float));
    f.args.y_pixel_stride = 2 * m;
    for (size_t part = 0; part < 2; part++) {
        f.args.y = joined + part * m, f.args.y_len = 2 * m * pixels - part * m;
        OK(convoke_plan_run(f.plan, &f.args, &last_error));
    }
    for (size_t i = 0; i < pixels; i++)
        CHECK(!memcmp(joined + 2 * i * m, joined + (2 * i + 1) * m, m * sizeof(float)));
    free(joined);
    free_fixture(&f);
}

/* Images a stride apart, whose pixels are a stride apart, too. */
static inline void check_both_strides(void)
{
    const layer *l = &LAYERS[0];
    convoke_plan_options options = default_options();
    options.separate_images = 1, options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    fixture f = fixture_of(l, &options);
    size_t plane = (size_t)(l->y[2] * l->y[3]), m = (size_t)l->y[1], pixel = m + 2, stride = plane * pixel + 9;
    float *y = (float *)aligned_memory(2 * stride * sizeof(float));
    f.args.y = y, f.args.y_len = stride + plane * pixel - 2;
    f.args.y_pixel_stride = pixel, f.args.y_image_stride = stride;
    OK(convoke_plan_run(f.plan, &f.args, &last_error));
    for (size_t n = 0; n < 2; n++)
        for (size_t p = 0; p < plane; p++)
            for (size_t c = 0; c < m; c++)
                ((float *)f.y)[(n * m + c) * plane + p] = y[n * stride + p * pixel + c];
    definition sums = defined(l, CONVOKE_DTYPE_FLOAT, f.x, f.w, f.bias);
    CHECK(is_defined(sums, l, CONVOKE_DTYPE_FLOAT, f.y, NULL, NULL));
    CHECK(all_bytes_are(y + plane * pixel - 2, 11 * sizeof(float), 0xff));
    f.args.y_len--;
    FAILS(CONVOKE_STATUS_BUFFER_LENGTH,
          "Conv: y has 1302 elements, 2 images of 646 elements, 657 apart, ask for 1303",
          convoke_plan_run(f.plan, &f.args, &last_error));
    free_definition(sums);
    free(y);
    free_fixture(&f);
}

static inline void check_channels_last(void)
{
    for (int i = 0; i < LAYER_COUNT; i++) {
        for (uint32_t separate_images = 0; separate_images < 2; separate_images++) {
            check_last(&LAYERS[i], separate_images, 0);
            check_last(&LAYERS[i], separate_images, 3);
        }
        check_layout_of_each(&LAYERS[i]);
    }
    check_concat();
    check_both_strides();
}

/* --- Empty tensors -------------------------------------------------------------------------- */

static inline void check_empty(void)
{
    convoke_operator *op = operator_of(&LAYERS[0]);
    const int64_t x_dims[] = {0, 5, 9, 8}, y_dims[] = {0, 7, 9, 8};
    convoke_plan *plan = plan_of(op, NULL, CONVOKE_DTYPE_FLOAT, x_dims);
    check_output_shape(plan, y_dims);
    void *w = tensor_of(CONVOKE_DTYPE_FLOAT, elements(LAYERS[0].w), 2), *memory;
    convoke_packed *packed = packed_of(plan, w, NULL, &memory);
    convoke_run_args args = run_args(plan, packed, NULL, NULL);
    OK(convoke_plan_run(plan, &args, &last_error));
    convoke_packed_destroy(packed), convoke_plan_destroy(plan), convoke_operator_destroy(op);
    free(w), free(memory), free(args.workspace);
}

static inline void check_names(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", CONVOKE_VERSION_MAJOR, CONVOKE_VERSION_MINOR, CONVOKE_VERSION_PATCH);
    CHECK(!strcmp(convoke_version(), version));
    CHECK(!strcmp(convoke_status_name(CONVOKE_STATUS_OK), "CONVOKE_STATUS_OK"));
    CHECK(!strcmp(convoke_status_name(CONVOKE_STATUS_INTERNAL), "CONVOKE_STATUS_INTERNAL"));
    CHECK(!strcmp(convoke_status_name(99), "an unknown convoke_status"));
}

static inline void check_results(void)
{
    check_names();
    check_layers();
    check_descs();
    check_shape_of_transposed();
    check_options();
    check_later_structs();
    check_saved();
    check_strides();
    check_channels_last();
    check_empty();
}

#endif
