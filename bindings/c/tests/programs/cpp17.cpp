// Every function and every error of convoke.h, from C++17; handles as unique_ptr, and an executor
// of std::thread.
#include "quantised.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Destroy {
    void operator()(convoke_operator *op) const { convoke_operator_destroy(op); }
    void operator()(convoke_plan *plan) const { convoke_plan_destroy(plan); }
    void operator()(convoke_packed *packed) const { convoke_packed_destroy(packed); }
};

template <class T> using Handle = std::unique_ptr<T, Destroy>;

void throw_unless_ok(const convoke_error &error)
{
    if (error.status != CONVOKE_STATUS_OK)
        throw std::runtime_error(std::string(convoke_status_name(error.status)) + ": " + error.message);
}

// Memory at a multiple of 64 bytes.
struct alignas(64) Line {
    unsigned char bytes[64];
};

std::vector<float> conv(const std::vector<float> &x, const std::vector<float> &w, const convoke_executor *executor)
{
    const int64_t x_dims[] = {1, 32, 28, 28}, w_dims[] = {32, 32, 3, 3}, pads[] = {1, 1, 1, 1};
    convoke_error error;
    convoke_operator_desc desc{};
    desc.struct_size = sizeof desc;
    desc.op_type = "Conv";
    desc.w_dims = {w_dims, 4};
    desc.pads = {pads, 4};
    convoke_operator *op;
    (void)convoke_operator_create_from_desc(&desc, &op, &error);
    throw_unless_ok(error);
    Handle<convoke_operator> owned_op(op);
    convoke_plan_options options{};
    options.struct_size = sizeof options;
    options.threads = executor ? executor->width : 1;
    options.algorithm = "im2col:native"; // The same sums for any number of threads.
    convoke_plan *plan;
    (void)convoke_plan_create(op, &options, CONVOKE_DTYPE_FLOAT, x_dims, 4, &plan, &error);
    throw_unless_ok(error);
    Handle<convoke_plan> owned_plan(plan);
    convoke_plan_info info{};
    info.struct_size = sizeof info;
    (void)convoke_plan_get_info(plan, &info, &error);
    throw_unless_ok(error);

    std::vector<Line> memory(info.packed_bytes / sizeof(Line)), workspace(info.workspace_bytes / sizeof(Line));
    convoke_pack_args weights{};
    weights.struct_size = sizeof weights;
    weights.w = w.data();
    weights.w_len = w.size();
    weights.memory = memory.data();
    weights.memory_bytes = info.packed_bytes;
    convoke_packed *packed;
    (void)convoke_plan_pack(plan, &weights, &packed, &error);
    throw_unless_ok(error);
    Handle<convoke_packed> owned_packed(packed);

    std::vector<float> y(info.y_len);
    convoke_run_args args{};
    args.struct_size = sizeof args;
    args.x = x.data();
    args.x_len = x.size();
    args.packed = packed;
    args.y = y.data();
    args.y_len = y.size();
    args.workspace = workspace.data();
    args.workspace_bytes = info.workspace_bytes;
    args.executor = executor;
    (void)convoke_plan_run(plan, &args, &error);
    throw_unless_ok(error);
    return y;
}

void on_threads(void *, convoke_task task, void *task_context, size_t count)
{
    std::vector<std::thread> threads;
    for (size_t i = 1; i < count; i++)
        threads.emplace_back(task, task_context, i);
    task(task_context, 0);
    for (std::thread &thread : threads)
        thread.join();
}

void check_handles()
{
    std::vector<float> x(32 * 28 * 28, 0.5F), w(32 * 32 * 9, 0.25F);
    const std::vector<float> serial = conv(x, w, nullptr);
    // The middle sees 9 taps of 32 channels, a corner 4.
    CHECK(serial[14 * 28 + 14] == 36 && serial[0] == 16);
    const convoke_executor executor = executor_of(on_threads, 2);
    CHECK(conv(x, w, &executor) == serial);
    x.pop_back();
    bool is_thrown = false;
    try {
        conv(x, w, nullptr);
    } catch (const std::runtime_error &error) {
        is_thrown = std::string(error.what()).find("BUFFER_LENGTH: Conv: x has 25087 elements") != std::string::npos;
    }
    CHECK(is_thrown);
}

} // namespace

int main()
{
    check_results();
    check_errors();
    check_quantised();
    check_handles();
    std::printf("%d checks passed\n", checks_passed);
    return 0;
}
