/* SPDX-License-Identifier: MIT */
/* Messages that are damaged, foreign or hostile: none of them is taken for what it is not, and
 * whatever a peer sends, worker and coordinator go on. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/cpu_features.h"
#include "cpu/kernels/matmul.h"
#include "offload/layer_plan.h"
#include "runtime/workers/worker_links.h"
#include "runtime/workers/worker_serve.h"
#include "tests/test_size.h"

enum { N_LAYER = 3, N_EXPERT = 10, N_USED = 2, N_IN = 32, MAX_ROWS = 3 };

static const moe_worker_identity identity = {77, N_LAYER, N_EXPERT, N_USED, N_IN};

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

static void every_changed_bit_is_seen(void **state)
{
    (void)state;
    uint8_t *payload;
    size_t n;
    moe_message message;
    uint8_t *bytes = moe_message_new(MOE_MESSAGE_JOB, 5, 40, &payload, &n);
    memset(payload, 7, 40);
    moe_message_seal(bytes, n);
    assert_int_equal(moe_message_read(bytes, n, &message), MOE_MESSAGE_GOOD);
    assert_int_equal(message.kind, MOE_MESSAGE_JOB);
    assert_int_equal(message.id, 5);
    assert_int_equal(message.n_bytes, 40);
    assert_memory_equal(message.payload, payload, 40);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(moe_message_read(bytes, n, &message), MOE_MESSAGE_GOOD);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t less = 0; less < n; less++) {
        assert_int_equal(moe_message_read(bytes, less, &message), MOE_MESSAGE_DAMAGED);
    }
    free(bytes);
    bytes = moe_message_new((moe_message_kind)99, 0, 0, &payload, &n);
    moe_message_seal(bytes, n);
    assert_int_equal(moe_message_read(bytes, n, &message), MOE_MESSAGE_FOREIGN);
    free(bytes);
}

static void texts_of_peers_are_printable(void **state)
{
    (void)state;
    char text[6];
    const moe_message message = {.payload = (const uint8_t *)"a\x1b[2J\n", .n_bytes = 6};
    moe_message_text(&message, text, sizeof text);
    assert_string_equal(text, "a?[2J");
}

/* ---- Rows ---- */

static void rows_of_8_bits_are_quantised_alike(void **state)
{
    (void)state;
    enum { N = 96, N_CASES = 3000 };
    static float x[N], y[N];
    static _Alignas(64) uint8_t of_x[4096], of_y[4096], sent[N * 4];
    moe_q8_rows a, b;
    moe_matmul_kernels kernels;
    uint64_t random = 5;
    assert_true(moe_q8_rows_bytes(1, N) <= sizeof of_x);
    moe_matmul_kernels_init(&kernels, moe_cpu_features());
    for (int c = 0; c < N_CASES; c++) {
        const int scale = (int)draw(&random, 276) - 150; /* also subnormal numbers, and zeros */
        for (int i = 0; i < N; i++) {
            x[i] = ldexpf((float)draw(&random, 1 << 24) - (1 << 23), scale - 23 - i / 32 * 3);
            x[i] = draw(&random, 9) == 0 ? 0.0f : x[i];
        }
        moe_rows_pack(MOE_ROWS_8_BITS, x, 0, 1, N, sent);
        moe_rows_unpack(MOE_ROWS_8_BITS, sent, 1, N, y);
        moe_q8_rows_bind(&a, of_x, 1, N);
        moe_q8_rows_bind(&b, of_y, 1, N);
        kernels.quantize_rows(x, N, 1, N, &a, 0);
        kernels.quantize_rows(y, N, 1, N, &b, 0);
        assert_memory_equal(a.q, sent, N);
        assert_memory_equal(of_x, of_y, moe_q8_rows_bytes(1, N));
    }
    assert_int_equal(moe_rows_bytes(MOE_ROWS_8_BITS, 1, N), N + 3 * sizeof(float));
}

/* ---- A wire that sends what a seed says ---- */

typedef struct hostile_wire {
    moe_wire base;
    uint64_t random;
    uint64_t n_left;
    uint64_t peer, n_peers;
    bool to_worker;
    moe_nonce its; /* what the other end has said last */
    const moe_worker_key *key;
    uint64_t n_computed, n_answers, n_holds;
    uint8_t has[(N_LAYER * N_EXPERT + 7) / 8], able[(N_LAYER * N_EXPERT + 7) / 8];
} hostile_wire;

static void copy_nonce(hostile_wire *w, const uint8_t *bytes, size_t n)
{
    moe_message message;
    assert_int_equal(moe_message_read(bytes, n, &message), MOE_MESSAGE_GOOD);
    if (message.kind == MOE_MESSAGE_HELLO || message.kind == MOE_MESSAGE_CHALLENGE) {
        memcpy(&w->its, message.payload, sizeof w->its);
    }
    w->n_answers += message.kind == MOE_MESSAGE_RESULT;
}

static void hostile_send(moe_wire *wire, uint64_t peer, uint8_t *bytes, size_t n)
{
    (void)peer;
    copy_nonce((hostile_wire *)wire, bytes, n);
    free(bytes);
}

static void hostile_drop(moe_wire *wire, uint64_t peer)
{
    hostile_wire *w = (hostile_wire *)wire;
    w->peer = w->peer == peer ? 0 : w->peer;
}

static int hostile_join(moe_wire *wire, const void *address, size_t n, uint64_t *peer,
                        moe_error *err)
{
    hostile_wire *w = (hostile_wire *)wire;
    (void)address, (void)n, (void)err;
    *peer = w->peer = ++w->n_peers;
    return MOE_OK;
}

static void hostile_allow(moe_wire *wire, uint64_t peer, size_t most_bytes)
{
    (void)wire, (void)peer, (void)most_bytes;
}

static void hostile_close(moe_wire *wire)
{
    (void)wire;
}

/* A message that fits, mostly. */
static size_t fill(hostile_wire *w, moe_message_kind kind, uint8_t *payload)
{
    static const moe_nonce ours = {{1}};
    const moe_nonce *of_coordinator = w->to_worker ? &ours : &w->its;
    const moe_nonce *of_worker = w->to_worker ? &w->its : &ours;
    moe_proof proof = {.identity = identity};
    moe_welcome welcome = {.max_rows = MAX_ROWS};
    moe_job_head job = {draw(&w->random, N_LAYER), 1 + draw(&w->random, MAX_ROWS),
                        draw(&w->random, 2), 0};
    uint32_t choice[2] = {draw(&w->random, N_EXPERT), MOE_PLAN_NO_EXPERT};
    switch (kind) {
    case MOE_MESSAGE_HELLO:
    case MOE_MESSAGE_CHALLENGE:
        memcpy(payload, &ours, sizeof ours);
        return sizeof ours;
    case MOE_MESSAGE_PROOF:
        moe_worker_mac(&w->base, w->key, false, of_coordinator, of_worker, &identity, proof.mac);
        memcpy(payload, &proof, sizeof proof);
        return sizeof proof;
    case MOE_MESSAGE_WELCOME:
        moe_worker_mac(&w->base, w->key, true, of_coordinator, of_worker, &identity, welcome.mac);
        memcpy(payload, &welcome, sizeof welcome);
        return sizeof welcome + 2 * moe_expert_bit_bytes(&identity);
    case MOE_MESSAGE_HOLD:
    case MOE_MESSAGE_HELD:
        for (size_t i = 0; i < moe_expert_bit_bytes(&identity); i++) {
            payload[i] = (uint8_t)draw(&w->random, 256);
        }
        return moe_expert_bit_bytes(&identity);
    case MOE_MESSAGE_JOB:
        memcpy(payload, &job, sizeof job);
        for (uint32_t r = 0; r < job.n_rows; r++) {
            memcpy(payload + sizeof job + moe_rows_bytes(job.form, job.n_rows, N_IN) +
                       r * sizeof choice,
                   choice, sizeof choice);
        }
        return moe_job_bytes(&identity, job.form, job.n_rows);
    default:
        return draw(&w->random, 200);
    }
}

static bool hostile_next(moe_wire *wire, uint64_t timeout_ns, moe_wire_event *event)
{
    hostile_wire *w = (hostile_wire *)wire;
    (void)timeout_ns;
    if (w->n_left == 0) {
        return false;
    }
    w->n_left--;
    *event = (moe_wire_event){.peer = w->peer};
    if (w->peer == 0 && !w->to_worker) {
        return false; /* until it is joined again */
    }
    if (w->peer == 0) {
        *event = (moe_wire_event){.kind = MOE_WIRE_JOINED, .peer = w->peer = ++w->n_peers};
        return true;
    }
    if (draw(&w->random, 50) == 0) {
        event->kind = MOE_WIRE_LOST;
        w->peer = 0;
        return true;
    }
    /* Mostly in the order of the handshake, so that much gets through it. */
    uint8_t payload[1024];
    memset(payload, 0, sizeof payload);
    static const moe_message_kind of_coordinators[] = {MOE_MESSAGE_HELLO, MOE_MESSAGE_PROOF,
                                                       MOE_MESSAGE_JOB, MOE_MESSAGE_JOB};
    static const moe_message_kind of_workers[] = {MOE_MESSAGE_CHALLENGE, MOE_MESSAGE_WELCOME,
                                                  MOE_MESSAGE_RESULT, MOE_MESSAGE_FAILED};
    const moe_message_kind *kinds = w->to_worker ? of_coordinators : of_workers;
    moe_message_kind kind = kinds[3 - w->n_left % 4];
    const bool moves = kind == kinds[2] && draw(&w->random, 4) == 0;
    kind = moves ? (w->to_worker ? MOE_MESSAGE_HOLD : MOE_MESSAGE_HELD) : kind;
    kind = draw(&w->random, 20) == 0 ? 1 + draw(&w->random, MOE_MESSAGE_HELD) : kind;
    size_t n = fill(w, kind, payload);
    while (draw(&w->random, 6) == 0 && n > 0) {
        payload[draw(&w->random, (uint32_t)n)] = (uint8_t)draw(&w->random, 256);
    }
    n = draw(&w->random, 20) == 0 ? draw(&w->random, (uint32_t)n + 8) : n;
    uint8_t *to;
    event->kind = MOE_WIRE_MESSAGE;
    event->message = moe_message_new(kind, draw(&w->random, 4), n, &to, &event->n_bytes);
    memcpy(to, payload, n);
    moe_message_seal(event->message, event->n_bytes);
    if (draw(&w->random, 30) == 0) {
        event->message[draw(&w->random, (uint32_t)event->n_bytes)] ^= 1;
    }
    return true;
}

static void mac(const uint8_t *key, size_t key_bytes, const uint8_t *data, size_t n,
                uint8_t out[MOE_WIRE_MAC_BYTES])
{
    (void)key, (void)key_bytes;
    memset(out, 0, MOE_WIRE_MAC_BYTES);
    for (size_t i = 0; i < n; i++) {
        out[i % MOE_WIRE_MAC_BYTES] = (uint8_t)(out[i % MOE_WIRE_MAC_BYTES] * 31 + data[i]);
    }
}

static bool no_random(uint8_t *bytes, size_t n)
{
    memset(bytes, 3, n);
    return true;
}

static const moe_wire_ops hostile_ops = {.join = hostile_join,
                                         .send = hostile_send,
                                         .allow = hostile_allow,
                                         .drop = hostile_drop,
                                         .next = hostile_next,
                                         .close = hostile_close};

static hostile_wire hostile(bool to_worker, const moe_worker_key *key)
{
    return (hostile_wire){.base = {.ops = &hostile_ops, .mac = mac, .random = no_random},
                          .random = 11,
                          .n_left = test_is_small() ? 200000 : 1000000,
                          .to_worker = to_worker,
                          .key = key};
}

/* ---- A worker among hostile coordinators ---- */

static int compute(void *context, const moe_worker_job *job, uint8_t *outs, uint32_t n_outs,
                   moe_error *err)
{
    hostile_wire *w = context;
    uint32_t n = 0;
    (void)err;
    assert_true(job->layer < N_LAYER && job->n_rows > 0 && job->n_rows <= MAX_ROWS);
    for (uint32_t s = 0; s < job->n_rows * N_USED; s++) {
        uint32_t expert;
        memcpy(&expert, job->chosen + s * sizeof expert, sizeof expert);
        assert_true(expert < N_EXPERT / 2 || expert == MOE_PLAN_NO_EXPERT);
        n += expert != MOE_PLAN_NO_EXPERT;
    }
    assert_true(n == n_outs && n > 0);
    memset(outs, 0, (size_t)n_outs * N_IN * sizeof(float));
    w->n_computed++;
    return MOE_OK;
}

static void hold(void *context, const uint8_t *experts)
{
    hostile_wire *w = context;
    for (size_t i = 0; i < sizeof w->has; i++) {
        w->has[i] = experts[i] & w->able[i];
    }
    w->n_holds++;
}

static bool is_stopped(void *context)
{
    return ((hostile_wire *)context)->n_left == 0;
}

static void idle(void *context)
{
    (void)context;
}

static void a_worker_goes_on(void **state)
{
    (void)state;
    const moe_worker_key key = {(const uint8_t *)"key", 3};
    moe_worker_counts counts;
    hostile_wire wire = hostile(true, &key);
    for (uint32_t i = 0; i < N_LAYER * N_EXPERT; i++) { /* it has the first half of each layer */
        wire.able[i / 8] |= (uint8_t)((i % N_EXPERT < N_EXPERT / 2) << i % 8);
    }
    const moe_worker_parts parts = {.wire = &wire.base,
                                    .identity = identity,
                                    .key = key,
                                    .max_rows = MAX_ROWS,
                                    .able = wire.able,
                                    .experts = wire.has,
                                    .hold = hold,
                                    .compute = compute,
                                    .is_stopped = is_stopped,
                                    .idle = idle,
                                    .context = &wire};
    assert_int_equal(moe_worker_serve_wire(&parts, &counts, NULL), MOE_OK);
    assert_true(counts.n_coordinators > 100 && counts.n_jobs > 100 && wire.n_holds > 100);
    assert_int_equal(counts.n_jobs, wire.n_computed);
    assert_int_equal(counts.n_jobs, wire.n_answers);
}

/* ---- A coordinator among hostile workers ---- */

static void a_coordinator_goes_on(void **state)
{
    (void)state;
    const moe_worker_key key = {(const uint8_t *)"key", 3};
    hostile_wire wire = hostile(false, &key);
    moe_worker_links links = {.wire = &wire.base,
                              .identity = identity,
                              .key = key,
                              .timeout_ns = UINT64_MAX / 4,
                              .pause_ns = 1};
    moe_worker_answer answer;
    uint64_t n_answers = 0, n_ready = 0;
    assert_int_equal(moe_worker_links_add(&links, "127.0.0.1:7", NULL), MOE_OK);
    while (wire.n_left > 0) {
        moe_worker_link *link = &links.list[0];
        link->pause_ns = 1;
        link->state = link->state == MOE_WORKER_REFUSED ? MOE_WORKER_AWAY : link->state;
        moe_worker_links_tend(&links);
        if (moe_worker_links_next(&links, 0, &answer) == MOE_WORKERS_ANSWER) {
            assert_ptr_equal(answer.from, link);
            n_answers++;
            moe_worker_answer_free(&answer);
        }
        n_ready += link->state == MOE_WORKER_READY;
    }
    assert_true(n_answers > 100 && n_ready > n_answers);
    moe_worker_links_close(&links);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_changed_bit_is_seen),
        cmocka_unit_test(texts_of_peers_are_printable),
        cmocka_unit_test(rows_of_8_bits_are_quantised_alike),
        cmocka_unit_test(a_worker_goes_on),
        cmocka_unit_test(a_coordinator_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
