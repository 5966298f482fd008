/* Every mistake that a call can be told of. */
#ifndef ERRORS_H
#define ERRORS_H

#include "results.h"

/* An address that is not NULL and not aligned, with nothing behind it. */
#define MISALIGNED(type) ((type *)(uintptr_t)1)

static inline void check_operator_errors(void)
{
    const int64_t w[] = {7, 5, 3, 3}, ones[] = {1, 1}, negative[] = {7, -5, 3, 3};
    int guard = 0;
    convoke_operator *op = (convoke_operator *)&guard;
    convoke_error *error = &last_error;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op_type is NULL", convoke_operator_create(NULL, 22, w, 4, &op, error));
    CHECK(!op);
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is NULL", convoke_operator_create("Conv", 22, w, 4, NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is at an address that is not a multiple of",
          convoke_operator_create("Conv", 22, w, 4, MISALIGNED(convoke_operator *), error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "w_dims is NULL", convoke_operator_create("Conv", 22, NULL, 4, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "w_dims is at an address that is not a multiple of 8",
          convoke_operator_create("Conv", 22, MISALIGNED(int64_t), 4, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "w_dims has 4097 entries",
          convoke_operator_create("Conv", 22, w, 4097, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "op_type is not UTF-8",
          convoke_operator_create("Conv\xff", 22, w, 4, &op, error));
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "\"Gemm\"", convoke_operator_create("Gemm", 22, w, 4, &op, error));
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "opset 0", convoke_operator_create("Conv", 0, w, 4, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_SHAPE, "W has size -5 on axis 1",
          convoke_operator_create("Conv", 22, negative, 4, &op, error));
    CHECK(!op);

    OK(convoke_operator_create("Conv", 22, w, 4, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is NULL", convoke_operator_set_int(NULL, "group", 1, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is at an address",
          convoke_operator_set_ints(MISALIGNED(convoke_operator), "strides", ones, 2, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "name is NULL", convoke_operator_set_ints(op, NULL, ones, 2, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "values is NULL", convoke_operator_set_ints(op, "strides", NULL, 2, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "value is NULL", convoke_operator_set_string(op, "auto_pad", NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "value is not UTF-8",
          convoke_operator_set_string(op, "auto_pad", "\xc3", error));
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "unknown attribute \"stride\"",
          convoke_operator_set_ints(op, "stride", ones, 2, error));
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "\"strides\" is of type INT, must be INTS",
          convoke_operator_set_int(op, "strides", 1, error));
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "unknown attribute \"output_padding\"",
          convoke_operator_set_ints(op, "output_padding", ones, 2, error));
    FAILS(CONVOKE_STATUS_INVALID_ATTRIBUTE, "auto_pad \"SAME\"",
          convoke_operator_set_string(op, "auto_pad", "SAME", error));
    OK(convoke_operator_set_ints(op, "strides", ones, 2, error));
    FAILS(CONVOKE_STATUS_INVALID_ATTRIBUTE, "\"strides\" is given twice",
          convoke_operator_set_ints(op, "strides", ones, 2, error));
    /* After all of these errors the operator is one with strides of 1. */
    const int64_t x[] = {2, 5, 9, 8};
    convoke_plan_destroy(plan_of(op, NULL, CONVOKE_DTYPE_FLOAT, x));
    convoke_operator_destroy(op);
    convoke_operator_destroy(NULL);
}

static inline void check_desc_errors(void)
{
    const int64_t w[] = {7, 5, 3, 3}, none[1] = {0};
    convoke_operator_desc desc;
    memset(&desc, 0, sizeof desc);
    convoke_operator *op = NULL;
    convoke_error *error = &last_error;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_operator_desc is NULL",
          convoke_operator_create_from_desc(NULL, &op, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_operator_desc: struct_size is 0, it must be sizeof(convoke_operator_desc)",
          convoke_operator_create_from_desc(&desc, &op, error));
    desc.struct_size = sizeof desc;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op_type is NULL", convoke_operator_create_from_desc(&desc, &op, error));
    desc.op_type = "Conv", desc.w_dims.len = 4;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "w_dims is NULL", convoke_operator_create_from_desc(&desc, &op, error));
    desc.w_dims.values = w, desc.pads.len = 4;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "pads is NULL", convoke_operator_create_from_desc(&desc, &op, error));
    desc.pads.len = 0, desc.auto_pad = "same_upper";
    FAILS(CONVOKE_STATUS_INVALID_ATTRIBUTE, "auto_pad", convoke_operator_create_from_desc(&desc, &op, error));
    desc.auto_pad = NULL, desc.output_shape.values = w, desc.output_shape.len = 2;
    FAILS(CONVOKE_STATUS_UNSUPPORTED_OPERATOR, "\"output_shape\"",
          convoke_operator_create_from_desc(&desc, &op, error));
    desc.output_shape.values = NULL, desc.output_shape.len = 0;
    /* An empty list that is given is not an absent one. */
    desc.strides.values = none;
    OK(convoke_operator_create_from_desc(&desc, &op, error));
    const int64_t x[] = {2, 5, 9, 8};
    convoke_plan *plan = NULL;
    FAILS(CONVOKE_STATUS_INVALID_ATTRIBUTE, "strides [] has 0 entries",
          convoke_plan_create(op, NULL, CONVOKE_DTYPE_FLOAT, x, 4, &plan, error));
    convoke_operator_destroy(op);
}

/* A plan with options that are changed. */
static inline void check_option(const convoke_operator *op, convoke_plan_options options, convoke_status status,
                                const char *part)
{
    const int64_t x[] = {2, 5, 9, 8};
    convoke_plan *plan = (convoke_plan *)&options;
    FAILS(status, part, convoke_plan_create(op, &options, CONVOKE_DTYPE_FLOAT, x, 4, &plan, &last_error));
    CHECK(!plan);
}

static inline void check_option_errors(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL);
    convoke_plan_options o = default_options();
    o.struct_size = offsetof(convoke_plan_options, x_layout) - 1;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_plan_options: struct_size");
    o = default_options(), o.isa = "sse2";
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "isa: \"sse2\" is not an ISA");
    o = default_options(), o.max_isa = "AVX3";
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "max_isa: \"AVX3\" is not an ISA");
    o = default_options(), o.isa = o.max_isa = "portable";
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "both isa and max_isa are set");
    o = default_options(), o.isa = "\xff";
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "isa is not UTF-8");
#if defined(__x86_64__)
    o = default_options(), o.isa = "neon";
    check_option(f.op, o, CONVOKE_STATUS_UNAVAILABLE, "the ISA neon was asked for");
#endif
    o = default_options(), o.algorithm = "fft";
    check_option(f.op, o, CONVOKE_STATUS_UNAVAILABLE, "unknown algorithm \"fft\"");
    o = default_options(), o.algorithm = "depthwise-transposed";
    check_option(f.op, o, CONVOKE_STATUS_UNAVAILABLE, "depthwise-transposed cannot be used");
    o = default_options(), o.threads = 1025;
    check_option(f.op, o, CONVOKE_STATUS_UNAVAILABLE, "Conv: a plan for 1025 threads; there must be at least 1 and at most 1024");
    o = default_options(), o.threads = SIZE_MAX;
    check_option(f.op, o, CONVOKE_STATUS_UNAVAILABLE, "at most 1024");
    o = default_options(), o.activation = CONVOKE_ACTIVATION_CLIP, o.clip_min = NAN;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ATTRIBUTE, "Conv: the activation Clip has a lower bound that is NaN");
    o = default_options(), o.activation = CONVOKE_ACTIVATION_CLIP, o.clip_max = NAN;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ATTRIBUTE, "Conv: the activation Clip has an upper bound that is NaN");
    o = default_options(), o.accuracy = 3;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "accuracy: 3 is not a convoke_accuracy");
    o = default_options(), o.activation = 11;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "activation: 11 is not a convoke_activation");
    o = default_options(), o.separate_images = 7;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "separate_images is 7, it must be 0 or 1");
    o = default_options(), o.x_layout = 2;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: x_layout: 2 is not a convoke_layout");
    o = default_options(), o.y_layout = UINT32_MAX;
    check_option(f.op, o, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: y_layout: 4294967295 is not a convoke_layout");
    o = default_options(), o.workspace_limit = 1, o.algorithm = "im2col:native";
    check_option(f.op, o, CONVOKE_STATUS_WORKSPACE, "bytes of workspace");
    o = default_options(), o.packed = MISALIGNED(const convoke_packed);
    check_option(f.op, o, CONVOKE_STATUS_INVALID_POINTER, "packed is at an address");
    fixture other = fixture_of(&LAYERS[1], NULL);
    o = default_options(), o.packed = other.packed;
    check_option(f.op, o, CONVOKE_STATUS_PACKED_MISMATCH, "W of shape [6, 3, 3, 3]");
    free_fixture(&other);
    /* Other weights would serve within the limit. */
    o = default_options(), o.algorithm = "gemm";
    other = fixture_of(&LAYERS[0], &o);
    o = default_options(), o.packed = other.packed, o.workspace_limit = 1;
    check_option(f.op, o, CONVOKE_STATUS_PACKED_MISMATCH, "the limit is 1: pack the weights again");
    free_fixture(&other);
    free_fixture(&f);
}

static inline void check_plan_errors(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL);
    const int64_t x[] = {2, 5, 9, 8}, bad[][4] = {{2, 5, -9, 8}, {2, 4, 9, 8}, {2, 5, INT64_MAX, INT64_MAX}};
    const uint32_t dtype = CONVOKE_DTYPE_FLOAT;
    convoke_plan *plan = NULL;
    convoke_error *error = &last_error;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "op is NULL", convoke_plan_create(NULL, NULL, dtype, x, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_create(f.op, NULL, dtype, x, 4, NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "x_dims is NULL",
          convoke_plan_create(f.op, NULL, dtype, NULL, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_SHAPE, "at least 3 dimensions",
          convoke_plan_create(f.op, NULL, dtype, NULL, 0, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "dtype: 5 is not a convoke_dtype",
          convoke_plan_create(f.op, NULL, 5, x, 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_SHAPE, "Conv: X has size -9 on axis 2",
          convoke_plan_create(f.op, NULL, dtype, bad[0], 4, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_SHAPE, "X has C = 4 channels",
          convoke_plan_create(f.op, NULL, dtype, bad[1], 4, &plan, error));
    FAILS(CONVOKE_STATUS_OVERFLOW, "exceeds the address space",
          convoke_plan_create(f.op, NULL, dtype, bad[2], 4, &plan, error));
    /* Nothing is read of a list that cannot be so long. */
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "x_dims has 4097 entries, more than 4096",
          convoke_plan_create(f.op, NULL, dtype, x, 4097, &plan, error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "x_dims has",
          convoke_plan_create(f.op, NULL, dtype, x, SIZE_MAX / 8, &plan, error));
    convoke_operator *old = NULL;
    OK(convoke_operator_create("Conv", 11, f.l->w, 4, &old, error));
    FAILS(CONVOKE_STATUS_INVALID_TYPE, "bfloat16 needs opset 22",
          convoke_plan_create(old, NULL, CONVOKE_DTYPE_BFLOAT16, x, 4, &plan, error));
    convoke_operator_destroy(old);
    convoke_plan_destroy(NULL);

    convoke_plan_info info;
    memset(&info, 0, sizeof info);
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_plan_info: struct_size is 0",
          convoke_plan_get_info(f.plan, &info, error));
    memset(&info, 0xff, sizeof info);
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "is it set?",
          convoke_plan_get_info(f.plan, &info, error));
    info.struct_size = sizeof info;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_get_info(NULL, &info, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_plan_info is NULL", convoke_plan_get_info(f.plan, NULL, error));

    int64_t dims[4] = {-1, -1, -1, -1};
    size_t rank = 0;
    FAILS(CONVOKE_STATUS_BUFFER_LENGTH, "dims: there is room for 3, 4 are needed",
          convoke_plan_output_shape(f.plan, dims, 3, &rank, error));
    CHECK(rank == 4 && dims[0] == -1);
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "dims is NULL", convoke_plan_output_shape(f.plan, NULL, 4, &rank, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "rank is NULL", convoke_plan_output_shape(f.plan, dims, 4, NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_output_shape(NULL, dims, 4, &rank, error));
    char text[8] = "before";
    size_t length = 0;
    FAILS(CONVOKE_STATUS_BUFFER_LENGTH, "text: there is room for 8",
          convoke_plan_explain(f.plan, text, sizeof text, &length, error));
    CHECK(length > 100 && !strcmp(text, "before"));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "text is NULL", convoke_plan_explain(f.plan, NULL, 1 << 16, &length, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "length is NULL", convoke_plan_explain(f.plan, text, 8, NULL, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_explain(NULL, text, 8, &length, error));
    free_fixture(&f);
}

static inline void check_pack_errors(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL);
    convoke_plan_info info = info_of(f.plan);
    unsigned char *memory = (unsigned char *)aligned_memory(info.packed_bytes + 64);
    convoke_pack_args right, args;
    memset(&right, 0, sizeof right);
    right.struct_size = sizeof right;
    right.w = f.w, right.w_len = info.w_len, right.bias = f.bias, right.bias_len = info.bias_len;
    right.memory = memory, right.memory_bytes = info.packed_bytes;
    int guard = 0;
    convoke_packed *packed = (convoke_packed *)&guard;
    convoke_error *error = &last_error;

#define WRONG(change, status, part) \
    (args = right, (void)(change), check_status(convoke_plan_pack(f.plan, &args, &packed, error), (status), (part), \
                                                #change, __FILE__, __LINE__), CHECK(!packed))
    WRONG(args.struct_size = 8, CONVOKE_STATUS_INVALID_ARGUMENT, "convoke_pack_args: struct_size is 8");
    WRONG(args.w = NULL, CONVOKE_STATUS_INVALID_POINTER, "w is NULL");
    WRONG(args.w = MISALIGNED(void), CONVOKE_STATUS_INVALID_POINTER, "w is at an address that is not a multiple of 4");
    WRONG(args.w_len--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: w has 314 elements, its shape [7, 5, 3, 3] asks for 315");
    WRONG(args.bias = NULL, CONVOKE_STATUS_INVALID_POINTER, "bias is NULL");
    WRONG(args.bias_len = 0, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: bias has 0 elements, the 7 output channels");
    WRONG(args.bias_len = 8, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: bias has 8 elements");
    WRONG(args.memory = NULL, CONVOKE_STATUS_INVALID_POINTER, "memory is NULL");
    WRONG(args.w = args.memory = NULL, CONVOKE_STATUS_INVALID_POINTER, "w is NULL");
    WRONG(args.memory = memory + 4, CONVOKE_STATUS_INVALID_POINTER,
          "memory is at an address that is not a multiple of 64");
    WRONG(args.memory_bytes += 64, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: memory has");
    WRONG(args.memory_bytes--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: memory has");
    WRONG(args.memory_bytes = 0, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: memory has 0 bytes, packed_bytes");
    /* Lengths are known before memory is compared. */
    WRONG(args.w_len = SIZE_MAX, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: w has");
    WRONG(args.bias_len = SIZE_MAX, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: bias has");
    WRONG(args.memory_bytes = SIZE_MAX, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: memory has");
    WRONG(args.memory = f.w, CONVOKE_STATUS_INVALID_POINTER, "memory overlaps ");
    WRONG(args.memory = f.bias, CONVOKE_STATUS_INVALID_POINTER, "memory overlaps ");
#undef WRONG
    CHECK(all_bytes_are(memory, info.packed_bytes + 64, 0xff));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_pack(NULL, &right, &packed, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_pack_args is NULL",
          convoke_plan_pack(f.plan, NULL, &packed, error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "packed is NULL", convoke_plan_pack(f.plan, &right, NULL, error));
    convoke_packed_destroy(NULL);
    free(memory);
    free_fixture(&f);
}

/* Packed weights that are not those of a plan. */
static inline void check_packed_errors(void)
{
    fixture f = fixture_of(&LAYERS[0], NULL), same = fixture_of(&LAYERS[0], NULL);
    OK(convoke_plan_accepts(f.plan, same.packed, &last_error));
    fixture other = fixture_of(&LAYERS[1], NULL);
    FAILS(CONVOKE_STATUS_PACKED_MISMATCH, "W of shape [6, 3, 3, 3], the plan needs [7, 5, 3, 3]",
          convoke_plan_accepts(f.plan, other.packed, &last_error));
    free_fixture(&other);
    convoke_plan *doubles = plan_of(f.op, NULL, CONVOKE_DTYPE_DOUBLE, f.l->x);
    FAILS(CONVOKE_STATUS_PACKED_MISMATCH, "the weights were packed for float, the plan needs double",
          convoke_plan_accepts(doubles, f.packed, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "packed is NULL", convoke_plan_accepts(f.plan, NULL, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_accepts(NULL, f.packed, &last_error));
    convoke_plan_destroy(doubles);
    convoke_plan_options options = default_options();
    options.isa = "Portable";
    fixture portable = fixture_of(&LAYERS[0], &options);
    if (strcmp(info_of(f.plan).isa, "portable"))
        FAILS(CONVOKE_STATUS_PACKED_MISMATCH, "for the ISA portable",
              convoke_plan_accepts(f.plan, portable.packed, &last_error));
    free_fixture(&portable), free_fixture(&same);

    /* Bytes that are not, or not all, packed weights. */
    size_t bytes = info_of(f.plan).packed_bytes;
    unsigned char *copy = (unsigned char *)aligned_memory(bytes + 64);
    int guard = 0;
    convoke_packed *packed = (convoke_packed *)&guard;
    const uint32_t dtype = CONVOKE_DTYPE_FLOAT;
    memcpy(copy, f.memory, bytes);
    FAILS(CONVOKE_STATUS_INVALID_PACKED, "changed or cut",
          convoke_packed_open(dtype, copy, bytes - 64, &packed, &last_error));
    CHECK(!packed);
    FAILS(CONVOKE_STATUS_INVALID_PACKED, "0 bytes are too few",
          convoke_packed_open(dtype, NULL, 0, &packed, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "memory is NULL",
          convoke_packed_open(dtype, NULL, bytes, &packed, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "packed is NULL",
          convoke_packed_open(dtype, copy, bytes, NULL, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_PACKED, "they are of float, not of float16",
          convoke_packed_open(CONVOKE_DTYPE_FLOAT16, copy, bytes, &packed, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_ARGUMENT, "dtype: 0 is not a convoke_dtype",
          convoke_packed_open(0, copy, bytes, &packed, &last_error));
    copy[bytes - 65] ^= 1;
    FAILS(CONVOKE_STATUS_INVALID_PACKED, "changed or cut",
          convoke_packed_open(dtype, copy, bytes, &packed, &last_error));
    copy[bytes - 65] ^= 1;
    copy[16] ^= 0x40;
    FAILS(CONVOKE_STATUS_INVALID_PACKED, "their form has version",
          convoke_packed_open(dtype, copy, bytes, &packed, &last_error));
    memmove(copy + 8, f.memory, bytes);
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "memory is at an address that is not a multiple of 64",
          convoke_packed_open(dtype, copy + 8, bytes, &packed, &last_error));
    free(copy);
    free_fixture(&f);
}

/* --- Runs ----------------------------------------------------------------------------------- */

/* Makes the calls one after the other. `context` counts them, and may be NULL. */
static inline void one_by_one(void *context, convoke_task task, void *task_context, size_t count)
{
    for (size_t i = 0; i < count; i++)
        task(task_context, i);
    if (context)
        *(size_t *)context += count;
}

/* Makes only the last call, and that twice. */
static inline void last_call_twice(void *context, convoke_task task, void *task_context, size_t count)
{
    (void)context;
    task(task_context, count - 1);
    task(task_context, count - 1);
}

static inline void no_call(void *context, convoke_task task, void *task_context, size_t count)
{
    (void)context, (void)task, (void)task_context, (void)count;
}

static inline convoke_executor executor_of(void (*parallel_for)(void *, convoke_task, void *, size_t), size_t width)
{
    convoke_executor executor;
    memset(&executor, 0, sizeof executor);
    executor.struct_size = sizeof executor;
    executor.width = width;
    executor.parallel_for = parallel_for;
    return executor;
}

static inline void check_run_errors(void)
{
    convoke_plan_options options = default_options();
    options.algorithm = "im2col:native"; /* It needs workspace on every machine. */
    fixture f = fixture_of(&LAYERS[0], &options);
    options.algorithm = "naive"; /* It packs otherwise. */
    fixture other = fixture_of(&LAYERS[0], &options);
    const convoke_run_args right = f.args;
    convoke_executor executor = executor_of(one_by_one, 1);
    size_t y_len = right.y_len;
    CHECK(right.workspace_bytes > 0);
    memset(f.y, 0xff, f.y_bytes);

#define WRONG(change, status, part) \
    (f.args = right, (void)(change), check_status(convoke_plan_run(f.plan, &f.args, &last_error), (status), (part), \
                                                  #change, __FILE__, __LINE__), CHECK(all_bytes_are(f.y, f.y_bytes, 0xff)))
    WRONG(f.args.struct_size = offsetof(convoke_run_args, x_pixel_stride) - 8, CONVOKE_STATUS_INVALID_ARGUMENT,
          "convoke_run_args: struct_size");
    WRONG(f.args.x = NULL, CONVOKE_STATUS_INVALID_POINTER, "x is NULL");
    WRONG(f.args.x = MISALIGNED(void), CONVOKE_STATUS_INVALID_POINTER, "x is at an address that is not a multiple of 4");
    WRONG(f.args.x_len--, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: x has 719 elements, 2 images of 360 elements, 360 apart, ask for 720");
    WRONG(f.args.x_len = SIZE_MAX, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: x has");
    WRONG(f.args.x_image_stride = 400, CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: x_image_stride is 400, and 2 images of 360 elements are computed together: plan with separate_images");
    WRONG(f.args.x_image_stride = 359, CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: x_image_stride is 359, an image has 360 elements");
    WRONG(f.args.packed = NULL, CONVOKE_STATUS_INVALID_POINTER, "packed is NULL");
    WRONG(f.args.packed = other.packed, CONVOKE_STATUS_PACKED_MISMATCH, "the weights are packed otherwise");
    WRONG(f.args.y = NULL, CONVOKE_STATUS_INVALID_POINTER, "y is NULL");
    WRONG(f.args.y = (char *)f.y + 2, CONVOKE_STATUS_INVALID_POINTER, "y is at an address");
    WRONG(f.args.y_len++, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: y has 1009 elements");
    WRONG(f.args.y_len = SIZE_MAX, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: y has");
    /* What is named depends on what the heap has behind this memory. */
    WRONG(f.args.y = f.x, CONVOKE_STATUS_INVALID_POINTER, "y overlaps x");
    WRONG(f.args.x = f.y, CONVOKE_STATUS_INVALID_POINTER, "y overlaps x");
    /* Here and below, it depends on the heap which other memory is reached too, and named first. */
    WRONG(f.args.y = (char *)f.memory + 64, CONVOKE_STATUS_INVALID_POINTER, "y overlaps ");
    WRONG((f.args.residual = other.y, f.args.residual_len = y_len - 1), CONVOKE_STATUS_BUFFER_LENGTH,
          "Conv: residual has 1007 elements");
    WRONG((f.args.residual = f.y, f.args.residual_len = y_len - 1), CONVOKE_STATUS_BUFFER_LENGTH,
          "Conv: residual has 1007 elements");
    WRONG(f.args.residual_len = y_len, CONVOKE_STATUS_INVALID_POINTER, "residual is NULL");
    WRONG((f.args.residual = MISALIGNED(void), f.args.residual_len = y_len), CONVOKE_STATUS_INVALID_POINTER,
          "residual is at an address");
    WRONG((f.args.residual = (float *)f.y + 1, f.args.residual_len = y_len), CONVOKE_STATUS_INVALID_POINTER,
          "y overlaps the residual");
    WRONG(f.args.workspace = NULL, CONVOKE_STATUS_INVALID_POINTER, "workspace is NULL");
    WRONG(f.args.workspace = (char *)right.workspace + 32, CONVOKE_STATUS_INVALID_POINTER,
          "workspace is at an address that is not a multiple of 64");
    WRONG(f.args.workspace_bytes -= 64, CONVOKE_STATUS_WORKSPACE, "1 threads need");
    WRONG(f.args.workspace_bytes = 0, CONVOKE_STATUS_WORKSPACE, "the workspace has 0 bytes");
    WRONG(f.args.workspace_bytes = SIZE_MAX, CONVOKE_STATUS_OVERFLOW, "workspace has");
    WRONG(f.args.workspace = f.y, CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG(f.args.workspace = f.x, CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG(f.args.workspace = f.memory, CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG((f.args.residual = other.y, f.args.residual_len = y_len, f.args.workspace = other.y),
          CONVOKE_STATUS_INVALID_POINTER, "workspace overlaps ");
    WRONG((f.args.executor = &executor, executor.struct_size = 1), CONVOKE_STATUS_INVALID_ARGUMENT,
          "convoke_executor: struct_size is 1");
    WRONG((executor = executor_of(NULL, 1), f.args.executor = &executor), CONVOKE_STATUS_INVALID_POINTER,
          "parallel_for of convoke_executor is NULL");
    WRONG((executor = executor_of(one_by_one, 0), f.args.executor = &executor), CONVOKE_STATUS_THREADS,
          "a run on 0 threads");
    WRONG((executor = executor_of(one_by_one, 2), f.args.executor = &executor), CONVOKE_STATUS_THREADS,
          "the plan was made for 1 thread, the run has 2");
    WRONG(f.args.executor = MISALIGNED(const convoke_executor), CONVOKE_STATUS_INVALID_POINTER,
          "convoke_executor is at an address");
#undef WRONG
    f.args = right;
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "plan is NULL", convoke_plan_run(NULL, &f.args, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_run_args is NULL", convoke_plan_run(f.plan, NULL, &last_error));
    FAILS(CONVOKE_STATUS_INVALID_POINTER, "convoke_run_args is at an address",
          convoke_plan_run(f.plan, MISALIGNED(const convoke_run_args), &last_error));
    /* Without a place for the reason. */
    CHECK(convoke_plan_run(f.plan, NULL, NULL) == CONVOKE_STATUS_INVALID_POINTER);
    CHECK(convoke_plan_run(f.plan, &f.args, MISALIGNED(convoke_error)) == CONVOKE_STATUS_INVALID_POINTER);
    CHECK(all_bytes_are(f.y, f.y_bytes, 0xff));
    CHECK(convoke_plan_run(f.plan, &f.args, NULL) == CONVOKE_STATUS_OK);
    run_fixture(&f);
    free_fixture(&f), free_fixture(&other);
}

static inline void check_pixel_stride_errors(void)
{
    convoke_plan_options options = default_options();
    options.x_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    fixture f = fixture_of(&LAYERS[0], &options);
    options.y_layout = CONVOKE_LAYOUT_CHANNELS_LAST;
    fixture last = fixture_of(&LAYERS[0], &options);
    spread x = spread_of(f.l->x, 0, 3, f.x), y = spread_of(f.l->y, 0, 9, NULL), residual = y;
    set_x(&last.args, &x), set_y(&last.args, &y);
    size_t y_bytes = length_of(&y) * sizeof(float);
    const convoke_run_args right = last.args;

#define WRONG(plan, change, status, part) \
    (last.args = right, (void)(change), \
     check_status(convoke_plan_run(plan, &last.args, &last_error), (status), (part), #change, __FILE__, __LINE__), \
     CHECK(all_bytes_are(y.wide, y_bytes, 0xff)))
    WRONG(f.plan, last.args.y_pixel_stride = 7, CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: y_pixel_stride is 7, and y has its channels first: only channels last can have one");
    WRONG(last.plan, last.args.x_pixel_stride = 4, CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: x_pixel_stride is 4, a pixel has 5 elements");
    WRONG(last.plan, last.args.y_pixel_stride = 6, CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: y_pixel_stride is 6, a pixel has 7 elements");
    WRONG(last.plan, (set_residual(&last.args, &x), last.args.residual_pixel_stride = 1),
          CONVOKE_STATUS_INVALID_ARGUMENT, "Conv: residual_pixel_stride is 1, a pixel has 7 elements");
    WRONG(last.plan, last.args.x_pixel_stride = SIZE_MAX, CONVOKE_STATUS_OVERFLOW,
          "such an image exceeds the address space");
    WRONG(last.plan, last.args.x_pixel_stride = SIZE_MAX / 72, CONVOKE_STATUS_OVERFLOW,
          "images exceed the address space");
    WRONG(last.plan, last.args.y_pixel_stride = 17, CONVOKE_STATUS_BUFFER_LENGTH,
          "Conv: y has 2304 elements, 2 images of 1214 elements, 1224 apart, ask for 2438");
    WRONG(last.plan, last.args.y_image_stride = 2000, CONVOKE_STATUS_INVALID_ARGUMENT,
          "Conv: y_image_stride is 2000, and 2 images of 1143 elements are computed together");
    /* Without its stride, a tensor is as long as its shape says. */
    WRONG(last.plan, last.args.y_pixel_stride = 0, CONVOKE_STATUS_BUFFER_LENGTH, "Conv: y has 2304 elements");
    /* Beside X or a residual in the same pixels. */
    WRONG(last.plan, (last.args.x = y.wide + 9, last.args.x_pixel_stride = 16, last.args.x_len = length_of(&y) - 9),
          CONVOKE_STATUS_INVALID_POINTER, "y overlaps x");
    residual.before = 8;
    WRONG(last.plan, set_residual(&last.args, &residual), CONVOKE_STATUS_INVALID_POINTER, "y overlaps the residual");
#undef WRONG
    free(x.wide), free(y.wide);
    free_fixture(&f), free_fixture(&last);
}

/* A layer that is long enough to be shared among threads. */
static const layer LARGE = {
    false, {1, 32, 28, 28}, {32, 32, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, {0, 0}, 1, NULL, {1, 32, 28, 28}, {1, 1}};

/* Executors that do not do what they should. */
static inline void check_executors(void)
{
    convoke_plan_options options = default_options();
    options.threads = 3;
    fixture f = fixture_of(&LARGE, &options);
    run_fixture(&f);
    void *serial = aligned_memory(f.y_bytes);
    memcpy(serial, f.y, f.y_bytes);

    size_t calls = 0;
    convoke_executor executor = executor_of(one_by_one, 3);
    executor.context = &calls;
    f.args.executor = &executor;
    memset(f.y, 0xff, f.y_bytes);
    run_fixture(&f);
    CHECK(calls > 1 && calls <= 3 && !memcmp(serial, f.y, f.y_bytes));

    executor = executor_of(last_call_twice, 3);
    memset(f.y, 0xff, f.y_bytes);
    run_fixture(&f);
    CHECK(!memcmp(serial, f.y, f.y_bytes));

    executor = executor_of(no_call, 3);
    memset(f.y, 0xff, f.y_bytes);
    FAILS(CONVOKE_STATUS_THREADS, "parallel_for of convoke_executor has returned without having called its task",
          convoke_plan_run(f.plan, &f.args, &last_error));
    CHECK(!memcmp(serial, f.y, f.y_bytes));

    /* Too little workspace for all of them is an error, and not fewer threads. */
    executor = executor_of(one_by_one, 3);
    f.args.workspace_bytes -= 64;
    FAILS(CONVOKE_STATUS_WORKSPACE, "3 threads need", convoke_plan_run(f.plan, &f.args, &last_error));
    free(serial);
    free_fixture(&f);
}

static inline void check_errors(void)
{
    check_operator_errors();
    check_desc_errors();
    check_option_errors();
    check_plan_errors();
    check_pack_errors();
    check_packed_errors();
    check_run_errors();
    check_pixel_stride_errors();
    check_executors();
}

#endif
