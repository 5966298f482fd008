/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/**
 * @file convoke.h
 * CPU kernels for the ONNX operators Conv and ConvTranspose.
 *
 * A layer goes through phases, each with a handle:
 *
 *     convoke_operator   the operator with its attributes, from ONNX names or from a struct
 *     convoke_plan       how to compute it for one shape of X: planned once
 *     convoke_packed     its weights in the layout of the plan: packed once
 *     convoke_plan_run   Y from X: any number of times
 *
 * Layers of bytes go through the same phases by functions whose names end in _quantised. Their weights
 * are convoke_quantised_weights, and convoke_scaled has what becomes of their sums.
 *
 * What holds for every function:
 *
 * - Shapes are those of ONNX: X (N, C, D1, D2, ...), Y (N, M, O1, O2, ...), W
 *   (M, C/group, k1, k2, ...) for Conv and (C, M/group, k1, k2, ...) for ConvTranspose, bias (M).
 *   Tensors are contiguous, and lie in memory in the order of their shapes. With channels last
 *   (convoke_layout), X or Y lies otherwise, and its shape stays the same. Dimensions are int64_t,
 *   as ONNX has them. Lengths of tensors are numbers of elements, lengths of other memory are
 *   numbers of bytes.
 * - **Errors.** A function that can fail returns a convoke_status, and writes the reason to its
 *   last argument, which may be NULL. Nothing else is written if it fails, except where a function
 *   says so. There is no state of a thread or of the process.
 * - **Memory.** If memory whose size depends on the layer cannot be allocated, the call fails with
 *   CONVOKE_STATUS_OUT_OF_MEMORY. If not even a handle, a list or a message can be, the process
 *   ends.
 * - **Pointers** are checked by functions that return a status: for NULL and alignment; and Y,
 *   workspace and the memory of packed weights for overlaps with each other and with tensors. The
 *   memory behind a pointer must have the length that is passed with it.
 * - **Structs** that begin with `struct_size` may grow in later versions. Set it to the size of the
 *   struct, and all fields that you do not need to zero, as `{.struct_size = sizeof args}` does.
 *   Zero is the default of every field.
 * - **Threads.** Any number of threads may use a handle at the same time through const pointers.
 *   Functions that take a handle without const need it for themselves. The library starts no
 *   threads.
 * - **Ownership.** Handles belong to the caller, who destroys them. Memory and structs that a
 *   function is given are only used until it returns, except the memory of packed weights.
 */


#ifndef CONVOKE_H
#define CONVOKE_H

#include <stddef.h>
#include <stdint.h>

/** The version of this header. convoke_version() is that of the library. */
#define CONVOKE_VERSION_MAJOR 0
#define CONVOKE_VERSION_MINOR 1
#define CONVOKE_VERSION_PATCH 0

/** Compilers of C++17 and C23 warn where a status is not looked at. */
#if defined(__cplusplus) && __cplusplus >= 201703L
#define CONVOKE_NODISCARD [[nodiscard]]
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L
#define CONVOKE_NODISCARD [[nodiscard]]
#else
#define CONVOKE_NODISCARD
#endif

/**
 * What a call returns. Later versions may add values.
 */
enum convoke_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * The call did what it says.
     */
    CONVOKE_STATUS_OK = 0,
    /**
     * A pointer is NULL or not aligned, or memory overlaps.
     */
    CONVOKE_STATUS_INVALID_POINTER = 1,
    /**
     * A value is none that this interface has: a `struct_size`, an enumeration, a text, a scale, a
     * zero point. Or the function is not for such a plan.
     */
    CONVOKE_STATUS_INVALID_ARGUMENT = 2,
    /**
     * The operator, its opset, or an attribute's name or type is not known.
     */
    CONVOKE_STATUS_UNSUPPORTED_OPERATOR = 3,
    /**
     * An attribute's value or length breaks a rule of the operator, or it is given twice.
     */
    CONVOKE_STATUS_INVALID_ATTRIBUTE = 4,
    /**
     * The shapes of X, W, bias or Y do not fit each other or the attributes.
     */
    CONVOKE_STATUS_INVALID_SHAPE = 5,
    /**
     * The element type is not allowed in this opset.
     */
    CONVOKE_STATUS_INVALID_TYPE = 6,
    /**
     * A size does not fit the address space, or a computation with sizes overflows.
     */
    CONVOKE_STATUS_OVERFLOW = 7,
    /**
     * The length of memory is not the one that is needed.
     */
    CONVOKE_STATUS_BUFFER_LENGTH = 8,
    /**
     * A plan needs more workspace than its limit allows, or than a run was given.
     */
    CONVOKE_STATUS_WORKSPACE = 9,
    /**
     * A run has more threads than its plan was made for, or none.
     */
    CONVOKE_STATUS_THREADS = 10,
    /**
     * Memory could not be allocated.
     */
    CONVOKE_STATUS_OUT_OF_MEMORY = 11,
    /**
     * The packed weights are not those of the plan, or not for the layer that is planned, or do not
     * serve it while others would: pack again.
     */
    CONVOKE_STATUS_PACKED_MISMATCH = 12,
    /**
     * A forced algorithm, ISA or number of threads is not available.
     */
    CONVOKE_STATUS_UNAVAILABLE = 13,
    /**
     * Bytes are not packed weights that can be used here.
     */
    CONVOKE_STATUS_INVALID_PACKED = 14,
    /**
     * An error of the library itself. Please report it.
     */
    CONVOKE_STATUS_INTERNAL = 15,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum convoke_status convoke_status;
#else
typedef uint32_t convoke_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * How much rounding error may be traded for speed.
 */
enum convoke_accuracy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Direct sums, and Winograd with small tiles. Errors of Winograd are in proportion to the greatest
     * input near an output, so that small outputs beside large inputs may have few correct digits or
     * none. For usual data the greatest error in f32 was below 5e-5 of the root mean square of Y. The
     * documentation of the crate's `Accuracy` has the bounds.
     */
    CONVOKE_ACCURACY_STANDARD = 0,
    /**
     * Direct sums of products only.
     */
    CONVOKE_ACCURACY_STRICT = 1,
    /**
     * The same, and Winograd with larger tiles, which err two to four times as much.
     */
    CONVOKE_ACCURACY_FAST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum convoke_accuracy convoke_accuracy;
#else
typedef uint32_t convoke_accuracy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * What is applied to each element of Y, after bias and residual. NaN stays NaN.
 */
enum convoke_activation
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Nothing.
     */
    CONVOKE_ACTIVATION_NONE = 0,
    /**
     * max(y, 0).
     */
    CONVOKE_ACTIVATION_RELU = 1,
    /**
     * min(max(y, clip_min), clip_max).
     */
    CONVOKE_ACTIVATION_CLIP = 2,
    /**
     * y if it is not negative, else leaky_slope * y.
     */
    CONVOKE_ACTIVATION_LEAKY_RELU = 3,
    /**
     * y * min(max(y / 6 + 1/2, 0), 1).
     */
    CONVOKE_ACTIVATION_HARD_SWISH = 4,
    /**
     * y / (1 + exp(-y)).
     */
    CONVOKE_ACTIVATION_SILU = 5,
    /**
     * 1 / (1 + exp(-y)).
     */
    CONVOKE_ACTIVATION_SIGMOID = 6,
    /**
     * The hyperbolic tangent.
     */
    CONVOKE_ACTIVATION_TANH = 7,
    /**
     * y / 2 * (1 + erf(y / sqrt(2))).
     */
    CONVOKE_ACTIVATION_GELU = 8,
    /**
     * y / 2 * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 y^3))).
     */
    CONVOKE_ACTIVATION_GELU_TANH = 9,
    /**
     * y * tanh(log(1 + exp(y))).
     */
    CONVOKE_ACTIVATION_MISH = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum convoke_activation convoke_activation;
#else
typedef uint32_t convoke_activation;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The element type of X, W, bias, residual and Y: the numbers of ONNX's `TensorProto.DataType`.
 *
 * The 16-bit types are only stored: sums are computed in float, the bias is added there, and the
 * result is rounded once, to nearest even. Integers are for convoke_plan_create_quantised.
 */
enum convoke_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * ONNX float: C's float.
     */
    CONVOKE_DTYPE_FLOAT = 1,
    /**
     * ONNX uint8: C's uint8_t.
     */
    CONVOKE_DTYPE_UINT8 = 2,
    /**
     * ONNX int8: C's int8_t.
     */
    CONVOKE_DTYPE_INT8 = 3,
    /**
     * ONNX int32: C's int32_t.
     */
    CONVOKE_DTYPE_INT32 = 6,
    /**
     * ONNX float16: the bits of an IEEE 754 half, as uint16_t.
     */
    CONVOKE_DTYPE_FLOAT16 = 10,
    /**
     * ONNX double: C's double.
     */
    CONVOKE_DTYPE_DOUBLE = 11,
    /**
     * ONNX bfloat16: the upper half of a float, as uint16_t. It needs opset 22.
     */
    CONVOKE_DTYPE_BFLOAT16 = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum convoke_dtype convoke_dtype;
#else
typedef uint32_t convoke_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The order of a tensor's elements in memory. Its shape has ONNX's order, (N, C, D1, D2, ...), in
 * every layout.
 */
enum convoke_layout
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * (N, C, D1, D2, ...), as in ONNX: NCHW.
     */
    CONVOKE_LAYOUT_CHANNELS_FIRST = 0,
    /**
     * (N, D1, D2, ..., C): NHWC, PyTorch's channels_last. The channels of a pixel are neighbours.
     */
    CONVOKE_LAYOUT_CHANNELS_LAST = 1,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum convoke_layout convoke_layout;
#else
typedef uint32_t convoke_layout;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A Conv or a ConvTranspose: W's shape, and the attributes.
 *
 * Values are checked when a plan is made for a shape of X. To set attributes, the handle must not
 * be in use by another thread.
 */
typedef struct convoke_operator convoke_operator;

/**
 * Weights and bias in the layout of a plan's kernels.
 *
 * The handle refers to memory of the caller, which must stay as it is until the handle is
 * destroyed. The memory is a whole description of the weights: it can be written to a file, and a
 * file that is read or mapped can be opened in another process, on a CPU with the same instruction
 * set, by the same version of the library.
 */
typedef struct convoke_packed convoke_packed;

/**
 * How to compute an operator on X of one shape and element type. Threads may share it.
 *
 * A plan is for floats, or a quantised one, for bytes. convoke_plan_get_info, convoke_plan_output_shape,
 * convoke_plan_explain and convoke_plan_destroy are for both. Of the others, those whose names end in
 * _quantised are for quantised plans, and the rest for floats (else CONVOKE_STATUS_INVALID_ARGUMENT).
 */
typedef struct convoke_plan convoke_plan;

/**
 * Weights in the order in which kernels read them, with their sums and the bias.
 *
 * The handle has memory of its own.
 */
typedef struct convoke_quantised_weights convoke_quantised_weights;

/**
 * What a run does with sums: made once from scales for packed weights, which it is for alone.
 */
typedef struct convoke_scaled convoke_scaled;

/**
 * What became of a call: the status that it returned, and its message.
 *
 * It is a plain value of the caller, and needs no initialisation. Every function writes it, also
 * when it succeeds: the message is empty then.
 */
typedef struct convoke_error {
    /**
     * What the call returned.
     */
    convoke_status status;
    /**
     * Bytes of the whole message, without a zero at its end. If there are more than `message`
     * holds, the rest is cut off.
     */
    size_t length;
    /**
     * The reason, in English and UTF-8, with a zero at its end: operator, axis, value and rule,
     * where the mistake has them.
     */
    char message[1024];
} convoke_error;

/**
 * A list of integers of the caller.
 *
 * `values` may be NULL if `len` is 0. In a convoke_operator_desc, NULL then means that the
 * attribute is absent, and a list of length 0 that is not NULL is an empty list, which is an error
 * of the operator.
 */
typedef struct convoke_ints {
    /**
     * The integers.
     */
    const int64_t *values;
    /**
     * Their number.
     */
    size_t len;
} convoke_ints;

/**
 * An operator with all its attributes, by their ONNX names. Attributes that are zero or NULL are
 * absent.
 */
typedef struct convoke_operator_desc {
    /**
     * sizeof(convoke_operator_desc).
     */
    size_t struct_size;
    /**
     * "Conv" or "ConvTranspose".
     */
    const char *op_type;
    /**
     * The model's opset of the domain ai.onnx. 0 means 22.
     */
    int64_t opset;
    /**
     * The shape of W: (M, C/group, k1, ...) for Conv, (C, M/group, k1, ...) for ConvTranspose.
     */
    struct convoke_ints w_dims;
    /**
     * One entry for each spatial axis. Absent: 1.
     */
    struct convoke_ints strides;
    /**
     * One entry for each spatial axis. Absent: 1.
     */
    struct convoke_ints dilations;
    /**
     * The beginnings of all spatial axes, then the ends of all. Absent: 0.
     */
    struct convoke_ints pads;
    /**
     * One entry for each spatial axis. W's shape says the same.
     */
    struct convoke_ints kernel_shape;
    /**
     * Of ConvTranspose: one entry for each spatial axis. Absent: 0.
     */
    struct convoke_ints output_padding;
    /**
     * Of ConvTranspose: one entry for each spatial axis.
     */
    struct convoke_ints output_shape;
    /**
     * "NOTSET", "VALID", "SAME_UPPER" or "SAME_LOWER". Absent: "NOTSET".
     */
    const char *auto_pad;
    /**
     * Absent: 1.
     */
    int64_t group;
} convoke_operator_desc;

/**
 * Wishes and limits of a plan. All zero is the default.
 */
typedef struct convoke_plan_options {
    /**
     * sizeof(convoke_plan_options).
     */
    size_t struct_size;
    /**
     * The number of threads that the work is split for: the width of the executor that will run
     * it, at most 1024. Runs on more threads are errors. 0 means 1.
     */
    size_t threads;
    /**
     * The instruction set of the kernels: "portable", "neon", "avx2" or "avx512", in upper or lower
     * case. NULL means the best one of the CPU, or what the environment variables CONVOKE_ISA and
     * CONVOKE_MAX_ISA say.
     */
    const char *isa;
    /**
     * The best instruction set of the CPU up to this one, in the order in which `isa` lists them.
     * At most one of the two may be set.
     */
    const char *max_isa;
    /**
     * An algorithm by its name, as convoke_plan_explain prints it. NULL means the one that is
     * estimated to be the fastest.
     */
    const char *algorithm;
    /**
     * Weights that are packed already, perhaps for another batch or spatial size of X. The plan
     * accepts them, and has their instruction set. They are only read until the call returns. If
     * they do not serve, for example within `workspace_limit`, and weights that are packed for this X
     * would, the status is CONVOKE_STATUS_PACKED_MISMATCH: plan without them, and pack again.
     */
    const struct convoke_packed *packed;
    /**
     * Bytes of workspace of a run, at most, for all threads together. 0 means no limit. With
     * 1, the plan needs no workspace, which is far slower for most layers.
     */
    size_t workspace_limit;
    /**
     * A convoke_accuracy.
     */
    uint32_t accuracy;
    /**
     * A convoke_activation.
     */
    uint32_t activation;
    /**
     * The lower bound of CONVOKE_ACTIVATION_CLIP. It may be infinite, and must not be NaN.
     */
    float clip_min;
    /**
     * The upper bound of CONVOKE_ACTIVATION_CLIP, likewise.
     */
    float clip_max;
    /**
     * The slope of CONVOKE_ACTIVATION_LEAKY_RELU below 0.
     */
    float leaky_slope;
    /**
     * 1 for a plan that computes one image of the batch after the other, so that a run may have
     * images that are not neighbours in memory: see convoke_run_args. 0 for a plan that computes
     * all of them together.
     */
    uint32_t separate_images;
    /**
     * A convoke_layout: how X lies in memory.
     */
    uint32_t x_layout;
    /**
     * A convoke_layout: how Y lies in memory, and a residual.
     */
    uint32_t y_layout;
} convoke_plan_options;

/**
 * What a caller needs to know of a plan to allocate its memory.
 */
typedef struct convoke_plan_info {
    /**
     * sizeof(convoke_plan_info), set by the caller.
     */
    size_t struct_size;
    /**
     * Elements of X.
     */
    size_t x_len;
    /**
     * Elements of W.
     */
    size_t w_len;
    /**
     * Elements of the bias.
     */
    size_t bias_len;
    /**
     * Elements of Y, and of a residual.
     */
    size_t y_len;
    /**
     * The number of Y's dimensions, and X's.
     */
    size_t y_rank;
    /**
     * Bytes of packed weights. It is a multiple of `packed_alignment`. 0 for a quantised plan, whose
     * weights are not in memory of the caller.
     */
    size_t packed_bytes;
    /**
     * What the address of packed weights must be a multiple of.
     */
    size_t packed_alignment;
    /**
     * Bytes of workspace of a run on `threads` threads. A run on fewer threads needs as much for
     * each of them. It is a multiple of `workspace_alignment`, and may be 0.
     */
    size_t workspace_bytes;
    /**
     * What the address of a workspace must be a multiple of.
     */
    size_t workspace_alignment;
    /**
     * The number of threads that the plan was made for. A run has no more.
     */
    size_t threads;
    /**
     * The name of the algorithm. This and the other texts live as long as the plan. They are empty
     * for a quantised plan: convoke_plan_explain has them.
     */
    const char *algorithm;
    /**
     * The name of the instruction set.
     */
    const char *isa;
    /**
     * The name of the kernel that does most of the work.
     */
    const char *kernel;
} convoke_plan_info;

/**
 * What convoke_plan_pack packs, and where.
 */
typedef struct convoke_pack_args {
    /**
     * sizeof(convoke_pack_args).
     */
    size_t struct_size;
    /**
     * W, of the plan's element type.
     */
    const void *w;
    /**
     * Elements of W: `w_len` of convoke_plan_info.
     */
    size_t w_len;
    /**
     * The bias, of the plan's element type. NULL without one.
     */
    const void *bias;
    /**
     * Elements of the bias: `bias_len` of convoke_plan_info. 0 without one.
     */
    size_t bias_len;
    /**
     * Where the packed weights go: at an address that is a multiple of `packed_alignment` of
     * convoke_plan_info. It must not overlap W and bias. What it holds before does not matter.
     */
    void *memory;
    /**
     * Bytes of `memory`: exactly `packed_bytes` of convoke_plan_info.
     */
    size_t memory_bytes;
} convoke_pack_args;

/**
 * The element types of a quantised plan: each a convoke_dtype.
 */
typedef struct convoke_quantised_dtypes {
    /**
     * That of X: CONVOKE_DTYPE_UINT8 or CONVOKE_DTYPE_INT8.
     */
    uint32_t x;
    /**
     * That of W: one of the same two.
     */
    uint32_t w;
    /**
     * That of Y: one of the same two, CONVOKE_DTYPE_INT32 as in ConvInteger, or CONVOKE_DTYPE_FLOAT or
     * CONVOKE_DTYPE_FLOAT16 if DequantizeLinear follows.
     */
    uint32_t y;
} convoke_quantised_dtypes;

/**
 * What convoke_plan_pack_quantised packs.
 */
typedef struct convoke_quantised_pack_args {
    /**
     * sizeof(convoke_quantised_pack_args).
     */
    size_t struct_size;
    /**
     * W, of the plan's type of W.
     */
    const void *w;
    /**
     * Elements of W: `w_len` of convoke_plan_info.
     */
    size_t w_len;
    /**
     * The zero points of W, of its type: one, or one for each output channel. NULL for 0.
     */
    const void *w_zero_point;
    /**
     * The number of zero points: 1, or `bias_len` of convoke_plan_info. 0 for NULL.
     */
    size_t w_zero_point_len;
    /**
     * The bias, whose scale is x_scale * w_scale, as in QLinearConv. NULL without one.
     */
    const int32_t *bias;
    /**
     * Elements of the bias: `bias_len` of convoke_plan_info. 0 without one.
     */
    size_t bias_len;
} convoke_quantised_pack_args;

/**
 * Scales and zero points, by ONNX's names.
 *
 * An output of bytes is round((sum + bias) * (x_scale * w_scale / y_scale)) + y_zero_point, saturated,
 * where sum is that of (x - x_zero_point) * (w - w_zero_point). The scale is computed in float, and
 * halves are rounded to even. An output in float is (sum + bias) * (x_scale * w_scale / y_scale), so
 * that y_scale is 1 for DequantizeLinear. One in float16 is the same number, rounded to nearest even. An
 * output in int32 is sum + bias, and has no scales.
 */
typedef struct convoke_scales {
    /**
     * sizeof(convoke_scales).
     */
    size_t struct_size;
    /**
     * The scale of W: one, or one for each output channel.
     */
    const float *w_scale;
    /**
     * The number of W's scales: 1, or `bias_len` of convoke_plan_info.
     */
    size_t w_scale_len;
    /**
     * The scale of X.
     */
    float x_scale;
    /**
     * The scale of Y.
     */
    float y_scale;
    /**
     * The zero point of X, a value of its type. Padding has it too.
     */
    int32_t x_zero_point;
    /**
     * The zero point of Y, a value of its type. It counts for bytes alone.
     */
    int32_t y_zero_point;
    /**
     * 256 values of Y's type, which must be uint8 or int8: each byte of Y becomes the one whose number has
     * the byte's bits. So a layer has any activation, and Y any scale behind it. NULL for none.
     */
    const void *y_table;
} convoke_scales;

/**
 * A part of a run, number `index`. It never throws.
 */
typedef void (*convoke_task)(void *task_context, size_t index);

/**
 * A pool of threads of the caller: an engine's own one, pthreadpool, a loop of OpenMP.
 *
 * A run asks for at most `width` calls at once. Each call takes parts of the work until none is
 * left, so the calls should begin at about the same time. They may also be made one after the
 * other, or in part: the result is the same.
 */
typedef struct convoke_executor {
    /**
     * sizeof(convoke_executor).
     */
    size_t struct_size;
    /**
     * What `parallel_for` is given as its first argument. The library does not look at it.
     */
    void *context;
    /**
     * The number of threads that work at the same time, at least 1. The calling thread is one of
     * them if it does not only wait.
     */
    size_t width;
    /**
     * Makes the calls `task(task_context, 0)` to `task(task_context, count - 1)`, on any threads,
     * and returns when all of them have returned. It must not throw, and must not call `task`
     * later.
     */
    void (*parallel_for)(void *context, convoke_task task, void *task_context, size_t count);
} convoke_executor;

/**
 * The memory of a run of a quantised plan, in the plan's types and layouts. Tensors are contiguous, unless a pixel stride
 * says otherwise: the distance between the pixels of a tensor with channels last, in elements. 0 is that of neighbours.
 * With one, a length is that of all memory up to the last element at least.
 */
typedef struct convoke_quantised_run_args {
    /**
     * sizeof(convoke_quantised_run_args).
     */
    size_t struct_size;
    /**
     * X.
     */
    const void *x;
    /**
     * Elements of X: `x_len` of convoke_plan_info.
     */
    size_t x_len;
    /**
     * The weights.
     */
    const struct convoke_quantised_weights *weights;
    /**
     * What becomes of the sums of these weights.
     */
    const struct convoke_scaled *scaled;
    /**
     * Y. Every element is written, so that it need not be initialised.
     */
    void *y;
    /**
     * Elements of Y: `y_len` of convoke_plan_info.
     */
    size_t y_len;
    /**
     * Scratch memory, as in convoke_run_args.
     */
    void *workspace;
    /**
     * Bytes of the workspace, as in convoke_run_args.
     */
    size_t workspace_bytes;
    /**
     * The threads of the run. NULL for the calling thread.
     */
    const struct convoke_executor *executor;
    /**
     * A tensor of Y's shape and type, which must be uint8 or int8, that is added before Y is rounded:
     * (residual - residual_zero_point) * (residual_scale / y_scale). NULL without one.
     */
    const void *residual;
    /**
     * Elements of the residual: `y_len` of convoke_plan_info. 0 without one.
     */
    size_t residual_len;
    /**
     * The scale of the residual.
     */
    float residual_scale;
    /**
     * The zero point of the residual, a value of its type.
     */
    int32_t residual_zero_point;
    /**
     * The stride of X's pixels.
     */
    size_t x_pixel_stride;
    /**
     * The stride of the residual's pixels.
     */
    size_t residual_pixel_stride;
    /**
     * The stride of Y's pixels. What is between them stays as it is. Y must hold values before then.
     */
    size_t y_pixel_stride;
} convoke_quantised_run_args;

/**
 * The memory of a run. Tensors are of the plan's element type.
 *
 * The images of X, Y and residual may be a stride apart: channels of larger tensors, for example
 * the parts of a concatenation. Image strides are numbers of elements from the beginning of an
 * image to that of the next one; 0 means that images are neighbours. A batch of more than one image
 * needs a plan with `separate_images` for other strides. With a stride, a tensor may be longer than
 * needed.
 *
 * Each image is contiguous. With channels last, its pixels may be a stride apart, too: they are
 * channels of the pixels of a wider tensor then. Pixel strides are numbers of elements from the
 * beginning of a pixel to that of the next one; 0 means that pixels are neighbours. All memory from
 * the first to the last element of such an image belongs to the run: no other tensor of the run may
 * lie between its pixels, and no other thread may write there until the call returns.
 */
typedef struct convoke_run_args {
    /**
     * sizeof(convoke_run_args).
     */
    size_t struct_size;
    /**
     * X.
     */
    const void *x;
    /**
     * Elements of X: `x_len` of convoke_plan_info.
     */
    size_t x_len;
    /**
     * The stride of X's images.
     */
    size_t x_image_stride;
    /**
     * The weights.
     */
    const struct convoke_packed *packed;
    /**
     * A tensor of Y's shape that is added before the activation. NULL without one. It may be Y
     * itself, which must hold values then.
     */
    const void *residual;
    /**
     * Elements of the residual: `y_len` of convoke_plan_info. 0 without one.
     */
    size_t residual_len;
    /**
     * The stride of the residual's images.
     */
    size_t residual_image_stride;
    /**
     * Y. Every element of its images is written. What is between images and between pixels stays as
     * it is. With a pixel stride, Y must hold values before.
     */
    void *y;
    /**
     * Elements of Y: `y_len` of convoke_plan_info.
     */
    size_t y_len;
    /**
     * The stride of Y's images.
     */
    size_t y_image_stride;
    /**
     * Scratch memory, for this run alone. What it holds before does not matter, and what it holds
     * afterwards neither. Its address must be a multiple of `workspace_alignment` of
     * convoke_plan_info. NULL if the plan needs none.
     */
    void *workspace;
    /**
     * Bytes of the workspace, at least those that the run's threads need: `workspace_bytes` of
     * convoke_plan_info is enough for all.
     */
    size_t workspace_bytes;
    /**
     * The threads of the run. NULL for the calling thread.
     */
    const struct convoke_executor *executor;
    /**
     * The stride of X's pixels.
     */
    size_t x_pixel_stride;
    /**
     * The stride of the residual's pixels.
     */
    size_t residual_pixel_stride;
    /**
     * The stride of Y's pixels.
     */
    size_t y_pixel_stride;
} convoke_run_args;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library, as `"0.1.0"`: a text that lives as long as the process.
 */
const char *convoke_version(void);

/**
 * The name of a status, as `"CONVOKE_STATUS_OK"`: a text that lives as long as the process. For
 * any other number it says so.
 */
const char *convoke_status_name(uint32_t status);

/**
 * Makes an operator without attributes, as a loader of models does. Set those that the node has.
 *
 * @param op_type  "Conv" or "ConvTranspose".
 * @param opset    the model's opset of the domain ai.onnx, at least 1.
 * @param w_dims   the shape of W: (M, C/group, k1, ...) for Conv, (C, M/group, k1, ...) for
 *                 ConvTranspose.
 * @param w_rank   the number of W's dimensions.
 * @param op     becomes the operator, or NULL if the call fails. The caller destroys it.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_operator_create(const char *op_type,
                                       int64_t opset,
                                       const int64_t *w_dims,
                                       size_t w_rank,
                                       struct convoke_operator **op,
                                       struct convoke_error *error);

/**
 * Makes an operator with all its attributes.
 *
 * @param desc   the operator and its attributes. They are copied.
 * @param op     becomes the operator, or NULL if the call fails. The caller destroys it.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_operator_create_from_desc(const struct convoke_operator_desc *desc,
                                                 struct convoke_operator **op,
                                                 struct convoke_error *error);

/**
 * Sets an attribute of ONNX's type INT: "group".
 *
 * To set one twice is an error, as it is in a model. If the call fails, the operator is as before.
 *
 * @param op     no other thread may use it meanwhile.
 * @param name   the ONNX name.
 * @param value  the value.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_operator_set_int(struct convoke_operator *op,
                                        const char *name,
                                        int64_t value,
                                        struct convoke_error *error);

/**
 * Sets an attribute of ONNX's type INTS: "strides", "dilations", "pads", "kernel_shape",
 * "output_padding", "output_shape".
 *
 * An empty list is not the default: its length is wrong. See convoke_operator_set_int.
 *
 * @param op     no other thread may use it meanwhile.
 * @param name   the ONNX name.
 * @param values the values, which are copied.
 * @param len    their number.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_operator_set_ints(struct convoke_operator *op,
                                         const char *name,
                                         const int64_t *values,
                                         size_t len,
                                         struct convoke_error *error);

/**
 * Sets an attribute of ONNX's type STRING: "auto_pad".
 *
 * See convoke_operator_set_int.
 *
 * @param op     no other thread may use it meanwhile.
 * @param name   the ONNX name.
 * @param value  the text, with a zero at its end. It is copied.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_operator_set_string(struct convoke_operator *op,
                                           const char *name,
                                           const char *value,
                                           struct convoke_error *error);

/**
 * Destroys an operator. Plans that were made of it stay. NULL is allowed.
 *
 * It must be one of this library, which is destroyed once.
 */
void convoke_operator_destroy(struct convoke_operator *op);

/**
 * Makes a plan: picks the algorithm that is estimated to be the fastest.
 *
 * It takes tens of microseconds, and allocates. Nothing is measured.
 *
 * @param op      the operator. The plan does not need it later.
 * @param options wishes and limits; NULL for none.
 * @param dtype   a convoke_dtype of floats: the element type of X, W, bias, residual and Y.
 * @param x_dims  the shape of X, (N, C, D1, D2, ...), in every layout.
 * @param x_rank  the number of X's dimensions, at least 3.
 * @param plan    becomes the plan, or NULL if the call fails. The caller destroys it.
 * @param error   becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_create(const struct convoke_operator *op,
                                   const struct convoke_plan_options *options,
                                   uint32_t dtype,
                                   const int64_t *x_dims,
                                   size_t x_rank,
                                   struct convoke_plan **plan,
                                   struct convoke_error *error);

/**
 * Writes lengths, numbers of bytes and names of a plan.
 *
 * @param plan  the plan.
 * @param info  becomes all this. Its `struct_size` must be set.
 * @param error becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_get_info(const struct convoke_plan *plan,
                                     struct convoke_plan_info *info,
                                     struct convoke_error *error);

/**
 * Writes the shape of Y, (N, M, O1, O2, ...), in every layout.
 *
 * @param plan     the plan.
 * @param dims     becomes the shape, if there is room for all of it.
 * @param capacity the number of dimensions that `dims` has room for. If it is 0, only `rank` is
 *                 written, and `dims` may be NULL.
 * @param rank     becomes the number of dimensions, which is that of X; also if there is too
 *                 little room (CONVOKE_STATUS_BUFFER_LENGTH).
 * @param error    becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_output_shape(const struct convoke_plan *plan,
                                         int64_t *dims,
                                         size_t capacity,
                                         size_t *rank,
                                         struct convoke_error *error);

/**
 * Writes a text that says what was picked, and why each other algorithm was not. It is for people:
 * any version may change it.
 *
 * For a plan of separate images, it is about one image.
 *
 * @param plan     the plan.
 * @param text     becomes the text, with a zero at its end, if there is room for all of it.
 * @param capacity bytes that `text` has room for. If it is 0, only `length` is written, and `text`
 *                 may be NULL.
 * @param length   becomes the length of the text in bytes, without the zero at its end; also if
 *                 there is too little room (CONVOKE_STATUS_BUFFER_LENGTH).
 * @param error    becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_explain(const struct convoke_plan *plan,
                                    char *text,
                                    size_t capacity,
                                    size_t *length,
                                    struct convoke_error *error);

/**
 * Destroys a plan. Weights that it packed stay. NULL is allowed.
 *
 * It must be one of this library, which is destroyed once, and no run may use it.
 */
void convoke_plan_destroy(struct convoke_plan *plan);

/**
 * Packs W and the bias into memory of the caller.
 *
 * The plan accepts the weights, and so do plans that are made with them as `packed` of
 * convoke_plan_options. If a weight is not finite, the weights have a layout of their own, which
 * every plan of the layer accepts, and runs by the loops of the definition, slowly.
 *
 * If the call fails, the memory is as before, with three exceptions: it may
 * be written if nothing is left to allocate for the bias (CONVOKE_STATUS_OUT_OF_MEMORY), if it
 * does not keep what is written (CONVOKE_STATUS_INVALID_PACKED), and after
 * CONVOKE_STATUS_INTERNAL.
 *
 * @param plan   how the weights are packed.
 * @param args   the weights, and the memory that they go to.
 * @param packed becomes the packed weights, or NULL if the call fails. The caller destroys them.
 *               The memory must stay as it is until then.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_pack(const struct convoke_plan *plan,
                                 const struct convoke_pack_args *args,
                                 struct convoke_packed **packed,
                                 struct convoke_error *error);

/**
 * Checks that runs of a plan accept packed weights: they are of the plan's layer and instruction set,
 * and in the layout that the plan reads. That is so if the plan packed them, if it was made with them
 * as `packed` of convoke_plan_options, or if it is one of the same layer and shape.
 *
 * @param plan   the plan.
 * @param packed the packed weights.
 * @param error  becomes the reason of a failure; may be NULL. It names what differs.
 * @return CONVOKE_STATUS_PACKED_MISMATCH if it does not.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_accepts(const struct convoke_plan *plan,
                                    const struct convoke_packed *packed,
                                    struct convoke_error *error);

/**
 * Opens packed weights that another process has packed: they were read from a file, or mapped.
 *
 * They are checked by a checksum, and used where they are. Make plans for them with `packed` of
 * convoke_plan_options. It is an error if they were changed or cut, are of another version of the
 * library, order of bytes or element type, or of an instruction set that this CPU lacks. A file
 * that somebody forged can make results wrong, but not unsafe.
 *
 * @param dtype  the convoke_dtype of the plan that packed them.
 * @param memory the packed weights, at an address that is a multiple of 64.
 * @param bytes  the length of all of them.
 * @param packed becomes the packed weights, or NULL if the call fails. The caller destroys them.
 *               The memory must stay as it is until then.
 * @param error  becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_packed_open(uint32_t dtype,
                                   const void *memory,
                                   size_t bytes,
                                   struct convoke_packed **packed,
                                   struct convoke_error *error);

/**
 * Destroys packed weights. Their memory is the caller's again. NULL is allowed.
 *
 * It must be one of this library, which is destroyed once, and no run may use it.
 */
void convoke_packed_destroy(struct convoke_packed *packed);

/**
 * Makes a plan of bytes: of QLinearConv, of ConvInteger, and of what quantised graphs mean by Conv and
 * ConvTranspose between DequantizeLinear and QuantizeLinear.
 *
 * Sums are exact: they are the same on every CPU. Zero points and scales are given with the weights and
 * with each run, so that one plan serves static and dynamic quantisation.
 *
 * CONVOKE_STATUS_UNAVAILABLE is also for X of 2^30 elements and more, kernels of thousands of taps, more
 * than 1024 phases of strides, and rows of X that take more than 32 MiB in 16 bits.
 *
 * @param op      the operator, "Conv" or "ConvTranspose". The plan does not need it later.
 * @param options threads, instruction set and layouts; NULL for none. Quantised plans have no
 *                activation, algorithm, packed weights, limit of the workspace or separate images
 *                (CONVOKE_STATUS_UNAVAILABLE).
 * @param dtypes  the element types of X, W and Y.
 * @param x_dims  the shape of X, (N, C, D1, D2, ...), in every layout.
 * @param x_rank  the number of X's dimensions, at least 3.
 * @param plan    becomes the plan, or NULL if the call fails. The caller destroys it.
 * @param error   becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_create_quantised(const struct convoke_operator *op,
                                             const struct convoke_plan_options *options,
                                             const struct convoke_quantised_dtypes *dtypes,
                                             const int64_t *x_dims,
                                             size_t x_rank,
                                             struct convoke_plan **plan,
                                             struct convoke_error *error);

/**
 * Packs W, its zero points and the bias.
 *
 * It fails with CONVOKE_STATUS_OVERFLOW if sums may not fit 32 bits: 255 times the sum of a channel's
 * magnitudes, and the magnitude of its bias. Weights whose zero point is the middle of their type,
 * which is 0 of int8 and 128 of uint8, may be multiplied faster.
 *
 * @param plan    a quantised plan.
 * @param args    the weights. They are copied.
 * @param weights becomes the packed weights, or NULL if the call fails. The caller destroys them.
 * @param error   becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_pack_quantised(const struct convoke_plan *plan,
                                           const struct convoke_quantised_pack_args *args,
                                           struct convoke_quantised_weights **weights,
                                           struct convoke_error *error);

/**
 * Says what runs do with the sums of packed weights: once for static quantisation, and before each run
 * where scales are known only then.
 *
 * Scales must be positive and finite, and so must x_scale * w_scale / y_scale.
 *
 * @param plan    a quantised plan.
 * @param weights its weights.
 * @param scales  scales and zero points. They are copied.
 * @param scaled  becomes the result, or NULL if the call fails. The caller destroys it. It does not
 *                need the weights later.
 * @param error   becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_scale_quantised(const struct convoke_plan *plan,
                                            const struct convoke_quantised_weights *weights,
                                            const struct convoke_scales *scales,
                                            struct convoke_scaled **scaled,
                                            struct convoke_error *error);

/**
 * Computes Y from X.
 *
 * What convoke_plan_run says of allocations, threads and failures is so here, too.
 *
 * @param plan  a quantised plan.
 * @param args  weights, scales, tensors, workspace and threads.
 * @param error becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_run_quantised(const struct convoke_plan *plan,
                                          const struct convoke_quantised_run_args *args,
                                          struct convoke_error *error);

/**
 * Destroys packed weights of a quantised plan. NULL is allowed.
 *
 * They must be of this library, and are destroyed once. No call may use them.
 */
void convoke_quantised_weights_destroy(struct convoke_quantised_weights *weights);

/**
 * Destroys what convoke_plan_scale_quantised made. NULL is allowed.
 *
 * It must be of this library, and is destroyed once. No run may use it.
 */
void convoke_scaled_destroy(struct convoke_scaled *scaled);

/**
 * Computes Y from X.
 *
 * A run that succeeds allocates nothing; one that fails allocates its message. No run starts
 * threads. The result is the same, bit for bit, for any number of threads. Threads may run the
 * same plan at the same time, each with its own Y and workspace.
 *
 * If the call fails, Y is as before, with two exceptions. If the executor makes no call, all of Y
 * is written, and the call fails with CONVOKE_STATUS_THREADS. After CONVOKE_STATUS_INTERNAL, a
 * part of Y may be written.
 *
 * @param plan  the plan.
 * @param args  weights, tensors, workspace and threads.
 * @param error becomes the reason of a failure; may be NULL.
 */
CONVOKE_NODISCARD
convoke_status convoke_plan_run(const struct convoke_plan *plan,
                                const struct convoke_run_args *args,
                                struct convoke_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CONVOKE_H */
