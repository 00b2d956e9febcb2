/* SPDX-License-Identifier: MIT */
/* Calibration of an oracle model: every table against a naive computation, interruption, and kill
 * -9. */
#include "tests/calibrate/calibrate_fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include <moe/calibrate.h>

#include "cache/trace_rows.h"
#include "tests/engine/engine_options.h"

#define N_KILLS 24

static const char *own_path;

/* ---- Counts, pairs, entropies: from the trace ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_percentiles(double *values, size_t n, const float *percentiles)
{
    qsort(values, n, sizeof *values, compare_doubles);
    for (size_t p = 1; p <= MOE_PERCENTILES; p++) {
        double expected = values[(n * p + 99) / 100 - 1];
        assert_true(fabs((double)percentiles[p - 1] - expected) <= 1.0 / 4096 + 1e-5);
    }
}

static void check_layer_by_trace(const moe_trace *trace, const moe_calibration *c, uint32_t layer)
{
    uint32_t n = calibrated.info.n_expert;
    double *counts = calloc(n, sizeof *counts);
    double *pairs = calloc((size_t)n * n, sizeof *pairs);
    double *weighted = calloc((size_t)n * n, sizeof *weighted);
    double *tae = calloc(trace->n_rows, sizeof *tae);
    double *margin = calloc(trace->n_rows, sizeof *margin);
    for (uint64_t row = 0; row < trace->n_rows; row++) {
        moe_trace_list list = moe_trace_list_of(trace, row, layer);
        double sum = 0.0;
        double p[64];
        for (uint32_t i = 0; i < list.n; i++) {
            sum += (double)list.gates[i];
        }
        for (uint32_t i = 0; i < list.n; i++) {
            p[i] = (double)list.gates[i] / sum;
            tae[row] -= p[i] * log(p[i]) / log(list.n);
            counts[list.ids[i]] += 1.0;
        }
        for (uint32_t i = 0; i < list.n; i++) {
            for (uint32_t j = 0; j < list.n; j++) {
                pairs[list.ids[i] * n + list.ids[j]] += i != j;
                weighted[list.ids[i] * n + list.ids[j]] += i != j ? fmin(p[i], p[j]) : 0.0;
            }
        }
        qsort(p, list.n, sizeof *p, compare_doubles);
        margin[row] = list.n > 1 ? p[list.n - 1] - p[list.n - 2] : 0.0;
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(c->counts[layer * n + i] == (uint64_t)counts[i]);
        for (size_t j = 0; j < n; j++) {
            size_t at = (layer * n + i) * n + j;
            assert_true((double)c->coactivation[at] == pairs[i * n + j]);
            assert_true(fabs((double)c->coactivation_weighted[at] - weighted[i * n + j]) <
                        1e-4 * (1.0 + weighted[i * n + j]));
        }
    }
    if (moe_trace_list_of(trace, 0, layer).n > 0) {
        check_percentiles(tae, trace->n_rows, c->tae + layer * MOE_PERCENTILES);
        check_percentiles(margin, trace->n_rows, c->margin + layer * MOE_PERCENTILES);
    }
    free(counts);
    free(pairs);
    free(weighted);
    free(tae);
    free(margin);
}

static void agrees_with_the_trace(void **state)
{
    (void)state;
    char name[128];
    moe_calibration *c = load(in_folder(name, "cal.gguf"));
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = in_folder(name, "trace.jsonl");
    moe_trace *trace = NULL;
    moe_error error;
    if (moe_trace_open(&trace, &options, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(trace->n_rows, N_TOKENS);
    assert_int_equal(c->n_tokens, N_TOKENS);
    for (uint32_t layer = 0; layer < calibrated.info.n_layer; layer++) {
        check_layer_by_trace(trace, c, layer);
    }
    moe_trace_close(&trace);
    moe_calibration_free(&c);
}

/* ---- Affinities: from the weights ---- */

/* Rows [first, first + n) of a tensor as floats. */
static float *dequantised(const model_file *m, const moe_tensor_ref *ref, uint64_t first,
                          uint64_t n)
{
    uint64_t row_bytes = moe_dtype_row_bytes(ref->type, ref->n_in);
    uint8_t *bytes = malloc(n * row_bytes);
    float *values = malloc(n * ref->n_in * sizeof *values);
    assert_int_equal(pread(moe_gguf_file_at(m->gguf, ref->file_index)->source->fd, bytes,
                           n * row_bytes, (off_t)(ref->offset + first * row_bytes)),
                     (ssize_t)(n * row_bytes));
    for (uint64_t r = 0; r < n; r++) {
        m->kernels.dequantize[ref->type](bytes + r * row_bytes, values + r * ref->n_in,
                                         (uint32_t)ref->n_in);
    }
    free(bytes);
    return values;
}

static double square_distance(const float *a, const float *b, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sum;
}

static double weight_distance(const model_file *m, uint32_t layer, uint32_t i, uint32_t j)
{
    double sum = 0.0;
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *a = &m->map.layers[layer].experts[i].parts[p];
        const moe_tensor_ref *b = &m->map.layers[layer].experts[j].parts[p];
        float *x = dequantised(m, a, 0, a->n_out);
        float *y = dequantised(m, b, 0, b->n_out);
        sum += square_distance(x, y, a->n_in * a->n_out);
        free(x);
        free(y);
    }
    return sqrt(sum);
}

static double router_distance(const model_file *m, uint32_t layer, uint32_t i, uint32_t j)
{
    const moe_tensor_ref *router = &m->map.layers[layer].tensors[MOE_LAYER_ROUTER];
    float *x = dequantised(m, router, i, 1);
    float *y = dequantised(m, router, j, 1);
    double distance = sqrt(square_distance(x, y, router->n_in));
    free(x);
    free(y);
    return distance;
}

/* Along each row the naive distance may only rise, but for what rounding may exchange. */
static void check_order(const model_file *m, const uint16_t *orders, uint32_t layer,
                        double (*distance)(const model_file *, uint32_t, uint32_t, uint32_t))
{
    uint32_t n = calibrated.info.n_expert;
    bool varied = false;
    for (uint32_t i = 0; i < n; i++) {
        const uint16_t *order = orders + ((size_t)layer * n + i) * n;
        assert_int_equal(order[0], i);
        double last = 0.0;
        for (uint32_t r = 1; r < n; r++) {
            double now = distance(m, layer, i, order[r]);
            assert_true(now >= last * (1.0 - 1e-4));
            varied |= r > 1 && now > last * 1.001;
            last = now;
        }
    }
    assert_true(varied);
}

static void affinities_of_weights(void **state)
{
    (void)state;
    char name[128];
    moe_calibration *c = load(in_folder(name, "cal.gguf"));
    model_file m;
    open_model(&m);
    for (uint32_t layer = 0; layer < calibrated.info.n_layer; layer++) {
        if (moe_layer_has_experts(&m.config, layer)) {
            check_order(&m, c->affinity[MOE_AFFINITY_WEIGHT], layer, weight_distance);
            check_order(&m, c->affinity[MOE_AFFINITY_ROUTER], layer, router_distance);
        }
    }
    close_model(&m);
    moe_calibration_free(&c);
}

/* Gram matrices are symmetric, their diagonals sums of squares; RMS norms make the trace known up
 * to the norm's weights, so here only that every layer has some. */
static void gram_matrices(void **state)
{
    (void)state;
    char name[128];
    moe_calibration *c = load(in_folder(name, "cal.gguf"));
    size_t n = calibrated.info.n_embd;
    for (size_t layer = 0; layer < calibrated.info.n_layer; layer++) {
        const float *gram = c->gram + layer * n * n;
        bool counted = false;
        for (uint32_t e = 0; e < calibrated.info.n_expert; e++) {
            counted |= c->counts[layer * calibrated.info.n_expert + e] > 0;
        }
        for (size_t i = 0; i < n; i++) {
            assert_true(counted ? gram[i * n + i] > 0.0f : gram[i * n + i] == 0.0f);
            for (size_t j = 0; j < i; j++) {
                assert_true(gram[i * n + j] == gram[j * n + i]);
                /* Cauchy and Schwarz */
                assert_true((double)gram[i * n + j] * gram[i * n + j] <=
                            1.001 * (double)gram[i * n + i] * gram[j * n + j]);
            }
        }
    }
    moe_calibration_free(&c);
}

/* ---- Interruption ---- */

typedef struct stopper {
    int calls_left;
    double last; /* fraction */
} stopper;

static bool stop_after(double fraction, void *user)
{
    stopper *s = user;
    assert_true(fraction >= s->last && fraction <= 1.0);
    bool has_advanced = fraction > s->last; /* it is also asked while bytes are waited for */
    s->last = fraction;
    return !has_advanced || s->calls_left-- > 0;
}

/* Stopped at every place where it can be, and gone on with by a new engine: the same bytes. */
static void resumed(void **state)
{
    (void)state;
    char whole[128], path[128], partial[128];
    in_folder(whole, "cal.gguf");
    in_folder(path, "resumed.gguf");
    in_folder(partial, "resumed.gguf.partial");
    int status = MOE_ERR_CANCELLED;
    int n_stops = 0;
    for (; status == MOE_ERR_CANCELLED; n_stops++) {
        moe_engine_options engine_opts = engine_options();
        moe_engine *engine = open_engine(&engine_opts);
        moe_calibrate_options options = calibrate_options(path);
        stopper s = {0};
        options.progress = stop_after;
        options.user = &s;
        moe_error error;
        status = moe_calibrate(engine, &options, &error);
        moe_engine_close(&engine);
        assert_int_equal(access(path, F_OK) == 0, status == MOE_OK);
        assert_int_equal(access(partial, F_OK) == 0, status != MOE_OK);
        assert_true(n_stops < 1000);
    }
    assert_int_equal(status, MOE_OK);
    assert_true(n_stops > 2 + (int)calibrated.info.n_layer);
    assert_same_file(path, whole);
}

/* A partial state that is damaged, or of another text, is not gone on with. */
static void starts_over(void **state)
{
    (void)state;
    char whole[128], path[128], partial[128];
    in_folder(whole, "cal.gguf");
    in_folder(path, "over.gguf");
    in_folder(partial, "over.gguf.partial");
    moe_engine_options engine_opts = engine_options();
    moe_engine *engine = open_engine(&engine_opts);
    moe_calibrate_options options = calibrate_options(path);
    stopper s = {1, 0.0};
    options.progress = stop_after;
    options.user = &s;
    calibrated.text[3] ^= 1;
    assert_int_equal(moe_calibrate(engine, &options, NULL), MOE_ERR_CANCELLED);
    calibrated.text[3] ^= 1;
    s = (stopper){1, 0.0};
    assert_int_equal(moe_calibrate(engine, &options, NULL), MOE_ERR_CANCELLED);
    moe_engine_close(&engine);
    size_t size;
    uint8_t *bytes = read_file(partial, &size);
    bytes[size / 2] ^= 4;
    FILE *file = fopen(partial, "wb");
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
    free(bytes);
    calibrate(&engine_opts, path);
    assert_same_file(path, whole);
}

/* Slots for few experts: waves, evictions, the same tables. */
static void small_cache(void **state)
{
    (void)state;
    char whole[128], path[128];
    moe_engine_options engine_opts = engine_options();
    lab_of(&engine_opts)->offload = MOE_OFFLOAD_ON_DEMAND;
    calibrate(&engine_opts, in_folder(path, "small.gguf"));
    assert_same_file(path, in_folder(whole, "cal.gguf"));
}

static int run_child(const char *path)
{
    moe_engine_options engine_opts = engine_options();
    moe_engine *engine = NULL;
    moe_engine_info child_info = {.struct_size = sizeof child_info};
    if (moe_engine_open(&engine, &engine_opts, NULL) != MOE_OK) {
        return 1;
    }
    moe_engine_get_info(engine, &child_info);
    make_prompt(calibrated.text, N_TOKENS, child_info.n_vocab, 9);
    moe_calibrate_options options = calibrate_options(path);
    options.save_interval_s = 1e-9;
    int status = moe_calibrate(engine, &options, NULL);
    moe_engine_close(&engine);
    return status == MOE_OK ? 0 : 1;
}

static pid_t start_child(const char *path)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(own_path, own_path, calibrated.path, path, (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    return pid;
}

/* Every kill leaves no sidecar, or a whole one; what is left goes on to the same bytes. */
static void killed(void **state)
{
    (void)state;
    char whole[128], path[128];
    in_folder(whole, "cal.gguf");
    in_folder(path, "killed.gguf");
    int n_killed = 0;
    long most_ns = 95000000; /* halved when a fast machine ends before the kill */
    for (int i = 0; n_killed < N_KILLS; i++) {
        pid_t pid = start_child(path);
        struct timespec pause = {0, most_ns / 95 * (5 + i * 7 % 90)};
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        n_killed += WIFSIGNALED(status);
        most_ns = WIFSIGNALED(status) ? most_ns : most_ns / 2;
        if (access(path, F_OK) == 0) {
            assert_same_file(path, whole);
            unlink(path);
        }
    }
    assert_int_equal(n_killed, N_KILLS);
    pid_t pid = start_child(path);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_same_file(path, whole);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_calibrate MODEL.gguf [SIDECAR]\n");
        return 2;
    }
    own_path = argv[0];
    calibrated.path = argv[1];
    if (argc == 3) {
        return run_child(argv[2]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_trace),
        cmocka_unit_test(affinities_of_weights),
        cmocka_unit_test(gram_matrices),
        cmocka_unit_test(resumed),
        cmocka_unit_test(starts_over),
        cmocka_unit_test(small_cache),
        cmocka_unit_test(killed),
    };
    return cmocka_run_group_tests(tests, calibrated_setup, calibrated_teardown);
}
