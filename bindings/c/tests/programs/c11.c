/* Every function and every error of convoke.h, from C11, and an executor of POSIX threads. */
#include "quantised.h"

#include <pthread.h>

enum { THREADS = 3 };

/* A call of the loop, for a thread of its own. */
typedef struct call {
    convoke_task task;
    void *task_context;
    size_t index;
} call;

static void *make_call(void *argument)
{
    const call *c = (const call *)argument;
    c->task(c->task_context, c->index);
    return NULL;
}

static void on_threads(void *context, convoke_task task, void *task_context, size_t count)
{
    (void)context;
    pthread_t threads[THREADS];
    call calls[THREADS];
    CHECK(count <= THREADS);
    for (size_t i = 1; i < count; i++) {
        calls[i] = (call){.task = task, .task_context = task_context, .index = i};
        CHECK(!pthread_create(&threads[i], NULL, make_call, &calls[i]));
    }
    task(task_context, 0);
    for (size_t i = 1; i < count; i++)
        CHECK(!pthread_join(threads[i], NULL));
}

static void check_threads(void)
{
    const convoke_plan_options options = {.struct_size = sizeof options, .threads = THREADS};
    fixture f = fixture_of(&LARGE, &options);
    run_fixture(&f);
    void *serial = aligned_memory(f.y_bytes);
    memcpy(serial, f.y, f.y_bytes);
    const convoke_executor executor = {.struct_size = sizeof executor, .width = THREADS, .parallel_for = on_threads};
    f.args.executor = &executor;
    memset(f.y, 0xff, f.y_bytes);
    run_fixture(&f);
    CHECK(!memcmp(serial, f.y, f.y_bytes));
    free(serial);
    free_fixture(&f);
}

/* The instruction set of a plan that says nothing about it. */
static void print_isa(void)
{
    fixture f = fixture_of(&LARGE, NULL);
    printf("isa %s\n", info_of(f.plan).isa);
    free_fixture(&f);
}

int main(void)
{
    check_results();
    check_errors();
    check_quantised();
    check_threads();
    print_isa();
    printf("%d checks passed\n", checks_passed);
    return 0;
}
