/* SPDX-License-Identifier: MIT */
/* The simulated device against its model: memory, bytes, and the time of transfers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"
#include "runtime/base/clock.h"
#include "runtime/device/sim_device.h"

static void specs(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        moe_sim_spec spec;
    } good[] = {
        {"sim:memory=2G,link=16GB/s,latency=10us", {2ull << 30, 16000000000ull, 10000}},
        {"sim:link=500MB/s,memory=1.5M", {3ull << 19, 500000000ull, 10000}},
        {"sim:memory=4096,latency=0ns,link=0.5GB/s", {4096, 500000000ull, 0}},
        {"sim:memory=1T,link=64GB/s,latency=1ms", {1ull << 40, 64000000000ull, 1000000}},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        moe_sim_spec spec;
        assert_true(moe_sim_spec_is(good[i].text));
        assert_int_equal(moe_sim_spec_parse(&spec, good[i].text, NULL), MOE_OK);
        assert_int_equal(spec.memory_bytes, good[i].spec.memory_bytes);
        assert_int_equal(spec.link_bytes_per_s, good[i].spec.link_bytes_per_s);
        assert_int_equal(spec.link_latency_ns, good[i].spec.link_latency_ns);
    }
    assert_false(moe_sim_spec_is("simple"));
    assert_false(moe_sim_spec_is("cpu"));
}

static void bad_specs(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"sim", "no memory="},
        {"sim:memory=1G", "no link="},
        {"sim:memory=1G,link=16", "link must be"},
        {"sim:memory=1G,link=16GiB/s", "link must be"},
        {"sim:memory=-1G,link=16GB/s", "memory must be"},
        {"sim:memory=0,link=16GB/s", "memory must be"},
        {"sim:memory=nan,link=16GB/s", "memory must be"},
        {"sim:memory=1Q,link=16GB/s", "memory must be"},
        {"sim:memory=,link=16GB/s", "memory must be"},
        {"sim:memory=1G,link=0GB/s", "link must be"},
        {"sim:memory=1G,link=16GB/s,latency=10", "latency must be"},
        {"sim:memory=1G,link=16GB/s,latency=1h", "latency must be"},
        {"sim:memory=1G,memory=2G,link=16GB/s", "memory is given twice"},
        {"sim:memory=1G,speed=16GB/s", "'speed=16GB/s' is not"},
        {"sim:memory", "'memory' is not"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        moe_sim_spec spec;
        moe_error err = {""};
        assert_int_equal(moe_sim_spec_parse(&spec, bad[i].text, &err), MOE_ERR_ARGUMENT);
        if (strstr(err.message, bad[i].message) == NULL) {
            fail_msg("%s: %s", bad[i].text, err.message);
        }
    }
}

static void bounded_memory(void **state)
{
    (void)state;
    device_fixture fixture;
    open_device(&fixture, "sim:memory=1M,link=16GB/s");
    moe_device *device = fixture.device;
    moe_error err = {""};
    void *a, *b;
    moe_sim_device_stats stats;
    assert_int_equal(device->ops->alloc(device, 600 << 10, &a, &err), MOE_OK);
    assert_int_equal(device->ops->alloc(device, 600 << 10, &b, &err), MOE_ERR_BUDGET);
    assert_non_null(strstr(err.message, "0.6 MiB are needed"));
    assert_non_null(strstr(err.message, "0.4 of its 1.0 MiB"));
    assert_null(b);
    assert_int_equal(device->ops->alloc(device, 424 << 10, &b, &err), MOE_OK);
    moe_sim_device_get_stats(device, &stats);
    assert_int_equal(stats.bytes_allocated, 1 << 20);
    device->ops->free(device, a, 600 << 10);
    device->ops->free(device, b, 424 << 10);
    assert_int_equal(device->ops->alloc(device, 1 << 20, &a, &err), MOE_OK);
    device->ops->free(device, a, 1 << 20);
    moe_device_limits large = {.linear = {4096, 4096}, .max_v_dim = 64, .max_head_group = 1};
    assert_int_equal(device->ops->reserve(device, &large, &err), MOE_ERR_BUDGET);
    assert_non_null(strstr(device->name, "simulated"));
    close_device(&fixture);
}

typedef struct link_test {
    device_fixture fixture;
    void *host, *target;
    size_t bytes;
} link_test;

static void open_link(link_test *t, const char *spec, size_t bytes)
{
    open_device(&t->fixture, spec);
    moe_device *device = t->fixture.device;
    t->bytes = bytes;
    assert_int_equal(device->link->host_alloc(device, bytes, &t->host, NULL), MOE_OK);
    assert_int_equal(device->ops->alloc(device, bytes, &t->target, NULL), MOE_OK);
    memset(t->host, 1, bytes);
    memset(t->target, 2, bytes); /* no page faults in what is timed */
}

static void close_link(link_test *t)
{
    moe_device *device = t->fixture.device;
    device->link->host_free(device, t->host, t->bytes);
    device->ops->free(device, t->target, t->bytes);
    close_device(&t->fixture);
}

static uint64_t begin_copy(link_test *t, size_t bytes)
{
    moe_device *device = t->fixture.device;
    moe_copy_range range = {t->target, t->host, bytes};
    uint64_t ticket;
    assert_int_equal(device->link->copy_begin(device, &range, 1, &ticket, NULL), MOE_OK);
    return ticket;
}

/* ---- Virtual time, so that other work of the machine changes nothing ---- */

/* While it is not 0, this is the time: it passes where somebody sleeps, and at each look at it, so
 * that waits that spin end. */
static _Atomic uint64_t virtual_ns;
#define LOOK_NS 100u

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __real_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *left);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *left);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    if (atomic_load(&virtual_ns) == 0) {
        return __real_clock_gettime(clock, now);
    }
    uint64_t ns = atomic_fetch_add(&virtual_ns, LOOK_NS);
    *now = (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return 0;
}

int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *left)
{
    uint64_t ns = atomic_load(&virtual_ns);
    if (ns == 0) {
        return __real_clock_nanosleep(clock, flags, until, left);
    }
    assert_int_equal(flags, TIMER_ABSTIME);
    uint64_t end = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    while (ns < end && !atomic_compare_exchange_weak(&virtual_ns, &ns, end)) {
    }
    return 0;
}

static void begin_virtual_time(void)
{
    atomic_store(&virtual_ns, moe_now_ns());
}

static void end_virtual_time(void)
{
    atomic_store(&virtual_ns, 0);
}

/* Time of so many copies begun at once, until the last is done. */
static uint64_t time_copies(link_test *t, uint32_t n, size_t bytes)
{
    uint64_t ticket = 0;
    uint64_t begin = moe_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        ticket = begin_copy(t, bytes);
    }
    moe_device *device = t->fixture.device;
    assert_int_equal(device->link->copy_wait(device, ticket, NULL), MOE_OK);
    return moe_now_ns() - begin;
}

/* Never faster than the model, and within 10 % of it. */
static void check_times(const char *spec, uint32_t n, size_t bytes, uint64_t model_ns)
{
    link_test t;
    begin_virtual_time();
    open_link(&t, spec, bytes);
    assert_in_range(time_copies(&t, n, bytes), model_ns, model_ns + model_ns / 10);
    close_link(&t);
    end_virtual_time();
}

static void link_times(void **state)
{
    (void)state;
    check_times("sim:memory=8M,link=1GB/s,latency=10us", 1, 4000000, 4010000);
    check_times("sim:memory=8M,link=1GB/s,latency=100us", 8, 500000, 8 * 600000);
    check_times("sim:memory=8M,link=500MB/s,latency=0us", 4, 1000000, 4 * 2000000);
    check_times("sim:memory=8M,link=64GB/s,latency=5ms", 3, 64, 3 * 5000000);
}

/* Uploads and downloads wait their turn on the link, each direction by itself. */
static void turns(void **state)
{
    (void)state;
    link_test t;
    begin_virtual_time();
    open_link(&t, "sim:memory=8M,link=100MB/s,latency=0us", 800000);
    moe_device *device = t.fixture.device;
    uint64_t begin = moe_now_ns();
    assert_int_equal(device->ops->upload(device, t.target, t.host, 400000, NULL), MOE_OK);
    assert_true(moe_now_ns() - begin >= 4000000);
    begin = moe_now_ns();
    assert_int_equal(device->ops->download(device, t.host, t.target, 200000, NULL), MOE_OK);
    assert_true(moe_now_ns() - begin >= 2000000);
    begin = moe_now_ns();
    uint64_t ticket = begin_copy(&t, 400000);
    assert_int_equal(
        device->ops->upload(device, (uint8_t *)t.target + 400000, t.host, 400000, NULL), MOE_OK);
    assert_int_equal(device->link->copy_wait(device, ticket, NULL), MOE_OK);
    assert_true(moe_now_ns() - begin >= 8000000);
    close_link(&t);
    end_virtual_time();
}

static void byte_counters(void **state)
{
    (void)state;
    link_test t;
    open_link(&t, "sim:memory=8M,link=16GB/s,latency=1us", 10000);
    moe_device *device = t.fixture.device;
    device->ops->upload(device, t.target, t.host, 1234, NULL);
    device->ops->download(device, t.host, t.target, 77, NULL);
    for (size_t bytes = 0; bytes < 10; bytes++) {
        uint64_t ticket = begin_copy(&t, bytes * 1000 + 1);
        assert_int_equal(device->link->copy_wait(device, ticket, NULL), MOE_OK);
    }
    moe_sim_device_stats stats;
    moe_sim_device_get_stats(device, &stats);
    assert_int_equal(stats.bytes_to_device, 1234 + 45000 + 10);
    assert_int_equal(stats.bytes_to_host, 77);
    assert_int_equal(stats.n_copies, 10);
    close_link(&t);
}

static void count_call(void *user)
{
    atomic_fetch_add((_Atomic int *)user, 1);
}

/* Whoever asked is told after every copy, and not after having been taken off. */
static void notified(void **state)
{
    (void)state;
    link_test t;
    open_link(&t, "sim:memory=8M,link=16GB/s,latency=1us", 1000);
    moe_device *device = t.fixture.device;
    _Atomic int n_calls = 0;
    device->link->copy_notify(device, count_call, &n_calls);
    for (int i = 0; i < 5; i++) {
        (void)begin_copy(&t, 1000);
    }
    uint64_t deadline = moe_now_ns() + 120000000000u;
    while (atomic_load(&n_calls) < 5 && moe_now_ns() < deadline) {
    }
    assert_int_equal(atomic_load(&n_calls), 5);
    device->link->copy_notify(device, NULL, NULL);
    assert_int_equal(device->link->copy_wait(device, begin_copy(&t, 1000), NULL), MOE_OK);
    assert_int_equal(atomic_load(&n_calls), 5);
    close_link(&t);
}

static void too_many(void **state)
{
    (void)state;
    link_test t;
    open_link(&t, "sim:memory=8M,link=16GB/s,latency=10ms", 1000);
    moe_device *device = t.fixture.device;
    uint64_t last = 0;
    for (uint32_t i = 0; i < MOE_MAX_COPIES; i++) {
        last = begin_copy(&t, 10);
    }
    moe_copy_range range = {t.target, t.host, 10};
    uint64_t ticket;
    assert_int_equal(device->link->copy_state(device, last), MOE_COPY_UNDER_WAY);
    assert_int_equal(device->link->copy_begin(device, &range, 1, &ticket, NULL), MOE_ERR_ARGUMENT);
    assert_int_equal(
        device->link->copy_begin(device, &range, MOE_MAX_COPY_RANGES + 1, &ticket, NULL),
        MOE_ERR_ARGUMENT);
    assert_int_equal(device->link->copy_wait(device, last, NULL), MOE_OK);
    close_link(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),      cmocka_unit_test(bad_specs), cmocka_unit_test(bounded_memory),
        cmocka_unit_test(link_times), cmocka_unit_test(turns),     cmocka_unit_test(byte_counters),
        cmocka_unit_test(notified),   cmocka_unit_test(too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
