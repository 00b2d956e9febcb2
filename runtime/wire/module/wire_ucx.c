/* SPDX-License-Identifier: MIT */
/* The functions that the wire's user calls, and opening. */
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <moe/version.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/wire/module/ucx_wire.h"

static void command(ucx_wire *w, const wire_command *what)
{
    wire_command *copy = calloc(1, sizeof *copy);
    if (copy == NULL) {
        free(what->bytes);
        moe_ucx_tell(w, MOE_WIRE_LOST, what->peer, NULL, 0, "out of memory");
        return;
    }
    *copy = *what;
    pthread_mutex_lock(&w->lock);
    *w->last_command = copy;
    w->last_command = &copy->next;
    pthread_mutex_unlock(&w->lock);
    (void)ucp_worker_signal(w->worker);
}

static int ucx_join(moe_wire *wire, const void *address, size_t n_bytes, uint64_t *peer,
                    moe_error *err)
{
    ucx_wire *w = (ucx_wire *)wire;
    wire_command what = {.kind = COMMAND_JOIN, .peer = moe_ucx_new_number(w)};
    if (n_bytes > sizeof what.address) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "an address of %zu bytes", n_bytes);
    }
    memcpy(&what.address, address, n_bytes);
    what.address_bytes = (socklen_t)n_bytes;
    *peer = what.peer;
    command(w, &what);
    return MOE_OK;
}

static void ucx_send(moe_wire *wire, uint64_t peer, uint8_t *message, size_t n_bytes)
{
    command(
        (ucx_wire *)wire,
        &(wire_command){.kind = COMMAND_SEND, .peer = peer, .bytes = message, .n_bytes = n_bytes});
}

static void ucx_drop(moe_wire *wire, uint64_t peer)
{
    ucx_wire *w = (ucx_wire *)wire;
    command(w, &(wire_command){.kind = COMMAND_DROP, .peer = peer});
    pthread_mutex_lock(&w->lock);
    for (queued_event *e = w->events; e != NULL; e = e->next) {
        if (e->event.peer == peer) {
            free(e->event.message);
            e->event.message = NULL;
            e->event.peer = 0; /* next() skips it */
        }
    }
    pthread_mutex_unlock(&w->lock);
}

static void ucx_allow(moe_wire *wire, uint64_t peer, size_t most_bytes)
{
    ucx_wire *w = (ucx_wire *)wire;
    pthread_mutex_lock(&w->lock);
    if (w->n_limits < MOE_WIRE_MOST_PEERS) {
        w->limits[w->n_limits].number = peer;
        w->limits[w->n_limits++].most_bytes = most_bytes;
    }
    pthread_mutex_unlock(&w->lock);
    (void)ucp_worker_signal(w->worker);
}

/* Takes the first event that is due by then. *due_ns: when the next one is, or as it was. */
static bool take_event(ucx_wire *w, uint64_t now, moe_wire_event *event, uint64_t *due_ns)
{
    bool found = false;
    pthread_mutex_lock(&w->lock);
    while (w->events != NULL && !found) {
        const uint64_t its_ns = w->events->event.time_ns + w->delay_ns;
        if (its_ns > now) {
            *due_ns = its_ns;
            break;
        }
        queued_event *first = w->events;
        w->events = first->next;
        w->n_events--;
        w->last_event = w->events == NULL ? &w->events : w->last_event;
        *event = first->event;
        event->time_ns += w->delay_ns;
        found = event->peer != 0;
        free(first);
    }
    pthread_mutex_unlock(&w->lock);
    return found;
}

static void empty(int fd)
{
    char bytes[64];
    while (read(fd, bytes, sizeof bytes) > 0) {
    }
}

static bool ucx_next(moe_wire *wire, uint64_t timeout_ns, moe_wire_event *event)
{
    ucx_wire *w = (ucx_wire *)wire;
    const uint64_t until = moe_now_ns() + timeout_ns;
    for (;;) {
        uint64_t now = moe_now_ns(), due = until;
        empty(w->event_fds[0]);
        if (take_event(w, now, event, &due)) {
            return true;
        }
        if (now >= until) {
            return false;
        }
        due = due < until ? due : until;
        struct timespec left = {.tv_sec = (time_t)((due - now) / 1000000000u),
                                .tv_nsec = (long)((due - now) % 1000000000u)};
        struct pollfd fds[2] = {{.fd = w->event_fds[0], .events = POLLIN},
                                {.fd = w->wake_fds[0], .events = POLLIN}};
        if (ppoll(fds, 2, &left, NULL) > 0 && fds[1].revents != 0) {
            empty(w->wake_fds[0]);
            return take_event(w, moe_now_ns(), event, &due);
        }
    }
}

static void ucx_wake(moe_wire *wire)
{
    moe_ucx_wake_fd(((ucx_wire *)wire)->wake_fds[1]);
}

static void close_pipe(const int fds[2])
{
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

static void ucx_close(moe_wire *wire)
{
    ucx_wire *w = (ucx_wire *)wire;
    moe_wire_event event;
    uint64_t never = 0;
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->stops = true;
        pthread_mutex_unlock(&w->lock);
        (void)ucp_worker_signal(w->worker);
        pthread_join(w->thread, NULL);
    }
    if (w->listener != NULL) {
        ucp_listener_destroy(w->listener);
    }
    if (w->worker != NULL) {
        ucp_worker_destroy(w->worker);
    }
    if (w->context != NULL) {
        ucp_cleanup(w->context);
    }
    while (take_event(w, UINT64_MAX, &event, &never)) {
        free(event.message);
    }
    while (w->commands != NULL) {
        wire_command *next = w->commands->next;
        free(w->commands->bytes);
        free(w->commands);
        w->commands = next;
    }
    close_pipe(w->wake_fds);
    close_pipe(w->event_fds);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void hmac_sha256(const uint8_t *key, size_t key_bytes, const uint8_t *data, size_t n,
                        uint8_t mac[MOE_WIRE_MAC_BYTES])
{
    static const uint8_t no_key[1];
    if (HMAC(EVP_sha256(), key_bytes > 0 ? key : no_key, (int)key_bytes, data, n, mac, NULL) ==
        NULL) {
        memset(mac, 0, MOE_WIRE_MAC_BYTES);
    }
}

static bool random_bytes(uint8_t *bytes, size_t n)
{
    return RAND_bytes(bytes, (int)n) == 1;
}

static const moe_wire_ops ucx_ops = {.join = ucx_join,
                                     .send = ucx_send,
                                     .allow = ucx_allow,
                                     .drop = ucx_drop,
                                     .next = ucx_next,
                                     .wake = ucx_wake,
                                     .close = ucx_close};

/* ---- Opening ---- */

static int fail(moe_error *err, const char *what, ucs_status_t status)
{
    return moe_fail(err, MOE_ERR_IO, "UCX: %s: %s", what, ucs_status_string(status));
}

static int open_worker(ucx_wire *w, moe_error *err)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .name = "moe-offload"};
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        /* A worker that is started again at once takes its address although the kernel still keeps
         * connections of the one before. UCX without this setting goes on without it. */
        (void)ucp_config_modify(config, "CM_REUSEADDR", "y");
        status = ucp_init(&params, config, &w->context);
        ucp_config_release(config);
    }
    if (status != UCS_OK) {
        return fail(err, "starting", status);
    }
    ucp_worker_params_t worker = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    status = ucp_worker_create(w->context, &worker, &w->worker);
    if (status == UCS_OK) {
        status = ucp_worker_get_efd(w->worker, &w->ready_fd);
    }
    if (status == UCS_OK) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = MESSAGE_ID,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = moe_ucx_on_message,
            .arg = w};
        status = ucp_worker_set_am_recv_handler(w->worker, &handler);
    }
    return status == UCS_OK ? MOE_OK : fail(err, "opening", status);
}

static int listen_at(ucx_wire *w, const moe_wire_options *options, moe_error *err)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {options->address, (socklen_t)options->address_bytes},
        .conn_handler = {moe_ucx_on_join, w}};
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t status = ucp_listener_create(w->worker, &params, &w->listener);
    if (status == UCS_OK) {
        status = ucp_listener_query(w->listener, &attr);
    }
    if (status != UCS_OK) {
        return moe_fail(err, MOE_ERR_IO,
                        "cannot listen there (%s): is the address free, and one of this machine?",
                        ucs_status_string(status));
    }
    const struct sockaddr_in *in = (const struct sockaddr_in *)&attr.sockaddr;
    w->base.port = ntohs(in->sin_port); /* at the same place in sockaddr_in6 */
    return MOE_OK;
}

/* UCX would print errors and handle fatal signals. This function and quieten() prevent both; the
 * wire's user gets errors instead. */
static ucs_log_func_rc_t say_nothing(const char *file, unsigned line, const char *function,
                                     ucs_log_level_t level,
                                     const ucs_log_component_config_t *config, const char *message,
                                     va_list args)
{
    (void)file, (void)line, (void)function, (void)level, (void)config, (void)message, (void)args;
    return UCS_LOG_FUNC_RC_STOP;
}

__attribute__((constructor)) static void quieten(void)
{
    static const int signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT};
    ucs_log_push_handler(say_nothing);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        ucs_debug_disable_signal(signals[i]);
    }
}

static int open_parts(ucx_wire *w, const moe_wire_options *options, moe_error *err)
{
    if (pipe2(w->wake_fds, O_NONBLOCK | O_CLOEXEC) != 0 ||
        pipe2(w->event_fds, O_NONBLOCK | O_CLOEXEC) != 0) {
        return moe_fail(err, MOE_ERR_IO, "no pipe for a wire: too many open files?");
    }
    MOE_TRY(open_worker(w, err));
    if (options->address != NULL) {
        MOE_TRY(listen_at(w, options, err));
    }
    w->has_thread = pthread_create(&w->thread, NULL, moe_ucx_main, w) == 0;
    return w->has_thread ? MOE_OK
                         : moe_fail(err, MOE_ERR_MEMORY, "cannot start the thread of a wire");
}

static int open_wire(moe_wire **out, const moe_wire_options *options, moe_error *err)
{
    ucx_wire *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a wire");
    }
    w->base = (moe_wire){.ops = &ucx_ops, .mac = hmac_sha256, .random = random_bytes};
    w->wake_fds[0] = w->wake_fds[1] = w->event_fds[0] = w->event_fds[1] = -1;
    w->delay_ns = options->delay_ns;
    w->last_command = &w->commands;
    w->last_event = &w->events;
    pthread_mutex_init(&w->lock, NULL);
    for (uint32_t i = 0; i < MOE_WIRE_MOST_PEERS; i++) {
        w->peers[i].wire = w;
    }
    int status = open_parts(w, options, err);
    if (status != MOE_OK) {
        ucx_close(&w->base);
        return status;
    }
    *out = &w->base;
    return MOE_OK;
}

__attribute__((visibility("default"))) const moe_wire_module *moe_wire_module_entry(void);

const moe_wire_module *moe_wire_module_entry(void)
{
    static const moe_wire_module module = {
        .abi = MOE_WIRE_MODULE_ABI, .version = MOE_VERSION_TEXT, .open = open_wire};
    return &module;
}
