/* A layer on a small pool of POSIX threads.
 *
 *     cc pthreads.c $(pkg-config --cflags --libs convoke) -pthread -o pthreads && ./pthreads 2
 *
 * The pool's threads wait for work, and the thread that calls the library works with them. Any pool
 * with a loop can take its place. With pthreadpool, `parallel_for` is one call:
 *
 *     pthreadpool_parallelize_1d(context, task, task_context, count, 0);
 *
 * Its last argument is for flags, and 0 means none. */
#include <convoke.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- The pool ------------------------------------------------------------------------------- */

typedef struct pool {
    pthread_mutex_t mutex;
    pthread_cond_t begin, end;
    pthread_t *threads; /* one fewer than `width` */
    size_t width;
    /* The loop that is on, guarded by the mutex. */
    convoke_task task;
    void *task_context;
    size_t next, count; /* the next call, and the number of all */
    size_t returned;    /* calls that have returned */
    bool is_over;
} pool;

/* Makes calls of the loop until none is left. The mutex is locked before and after. */
static void work(pool *p)
{
    while (p->next < p->count) {
        size_t index = p->next++;
        pthread_mutex_unlock(&p->mutex);
        p->task(p->task_context, index);
        pthread_mutex_lock(&p->mutex);
        if (++p->returned == p->count)
            pthread_cond_signal(&p->end);
    }
}

static void *thread_of_pool(void *argument)
{
    pool *p = argument;
    pthread_mutex_lock(&p->mutex);
    while (!p->is_over) {
        work(p);
        if (!p->is_over)
            pthread_cond_wait(&p->begin, &p->mutex);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* The loop that convoke calls, one at a time: a pool that several threads call needs a queue. */
static void parallel_for(void *context, convoke_task task, void *task_context, size_t count)
{
    pool *p = context;
    pthread_mutex_lock(&p->mutex);
    p->task = task, p->task_context = task_context;
    p->next = p->returned = 0, p->count = count;
    pthread_cond_broadcast(&p->begin);
    work(p);
    while (p->returned < p->count)
        pthread_cond_wait(&p->end, &p->mutex);
    p->count = p->next = 0;
    pthread_mutex_unlock(&p->mutex);
}

static pool *new_pool(size_t width)
{
    pool *p = calloc(1, sizeof *p);
    if (!p || !(p->threads = calloc(width, sizeof *p->threads)))
        exit(2);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->begin, NULL);
    pthread_cond_init(&p->end, NULL);
    for (p->width = 1; p->width < width; p->width++)
        if (pthread_create(&p->threads[p->width - 1], NULL, thread_of_pool, p))
            exit(2);
    return p;
}

static void free_pool(pool *p)
{
    pthread_mutex_lock(&p->mutex);
    p->is_over = true;
    pthread_cond_broadcast(&p->begin);
    pthread_mutex_unlock(&p->mutex);
    for (size_t i = 0; i + 1 < p->width; i++)
        pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->mutex);
    pthread_cond_destroy(&p->begin);
    pthread_cond_destroy(&p->end);
    free(p->threads);
    free(p);
}

/* --- A layer -------------------------------------------------------------------------------- */

/* Ends the program if a call failed. */
static void check(const convoke_error *error)
{
    if (error->status != CONVOKE_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", convoke_status_name(error->status), error->message);
        exit(1);
    }
}

/* Memory for packed weights or workspace; their numbers of bytes are multiples of the alignment. */
static void *memory_of(size_t alignment, size_t bytes)
{
    void *memory = aligned_alloc(alignment, bytes);
    if (!memory && bytes)
        exit(2);
    return memory;
}

static float *filled(size_t len, float step)
{
    float *values = malloc(len * sizeof *values);
    if (!values)
        exit(2);
    for (size_t i = 0; i < len; i++)
        values[i] = step * (float)(i % 17) - 8 * step;
    return values;
}

static double microseconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* The least time of some runs. */
static double time_of(const convoke_plan *plan, const convoke_run_args *args)
{
    convoke_error error;
    double least = 1e12;
    for (int i = 0; i < 20; i++) {
        double begin = microseconds();
        (void)convoke_plan_run(plan, args, &error);
        check(&error);
        double time = microseconds() - begin;
        least = time < least ? time : least;
    }
    return least;
}

int main(int argc, char **argv)
{
    size_t width = argc > 1 ? strtoul(argv[1], NULL, 10) : 2;
    const int64_t x_dims[] = {1, 64, 56, 56}, w_dims[] = {64, 64, 3, 3}, pads[] = {1, 1, 1, 1};
    convoke_error error;
    const convoke_operator_desc desc = {
        .struct_size = sizeof desc, .op_type = "Conv", .w_dims = {w_dims, 4}, .pads = {pads, 4}};
    convoke_operator *op;
    (void)convoke_operator_create_from_desc(&desc, &op, &error);
    check(&error);
    const convoke_plan_options options = {
        .struct_size = sizeof options, .threads = width, .activation = CONVOKE_ACTIVATION_RELU};
    convoke_plan *plan;
    (void)convoke_plan_create(op, &options, CONVOKE_DTYPE_FLOAT, x_dims, 4, &plan, &error);
    check(&error);
    convoke_plan_info info = {.struct_size = sizeof info};
    (void)convoke_plan_get_info(plan, &info, &error);
    check(&error);

    float *x = filled(info.x_len, 0.1f), *w = filled(info.w_len, 0.01f), *bias = filled(info.bias_len, 0.5f);
    void *memory = memory_of(info.packed_alignment, info.packed_bytes);
    const convoke_pack_args weights = {.struct_size = sizeof weights, .w = w, .w_len = info.w_len, .bias = bias,
                                       .bias_len = info.bias_len, .memory = memory, .memory_bytes = info.packed_bytes};
    convoke_packed *packed;
    (void)convoke_plan_pack(plan, &weights, &packed, &error);
    check(&error);

    float *y = filled(info.y_len, 0), *shared_y = filled(info.y_len, 0);
    void *workspace = memory_of(info.workspace_alignment, info.workspace_bytes);
    convoke_run_args args = {.struct_size = sizeof args, .x = x, .x_len = info.x_len, .packed = packed, .y = y,
                             .y_len = info.y_len, .workspace = workspace, .workspace_bytes = info.workspace_bytes};
    double alone = time_of(plan, &args);
    pool *p = new_pool(width);
    const convoke_executor executor = {
        .struct_size = sizeof executor, .context = p, .width = width, .parallel_for = parallel_for};
    args.executor = &executor;
    args.y = shared_y;
    double shared = time_of(plan, &args);
    bool is_same = !memcmp(y, shared_y, info.y_len * sizeof *y);
    printf("%s, %s: %.0f us on one thread, %.0f us on %zu, %s\n", info.algorithm, info.isa, alone, shared, width,
           is_same ? "the same bits" : "other bits");

    free_pool(p);
    convoke_packed_destroy(packed);
    convoke_plan_destroy(plan);
    convoke_operator_destroy(op);
    free(x), free(w), free(bias), free(y), free(shared_y), free(memory), free(workspace);
    return is_same ? 0 : 1;
}
