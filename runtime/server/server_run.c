/* SPDX-License-Identifier: MIT */
#include "server.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server_disk.h"
#include "server_http.h"
#include "server_socket.h"

static void log_line(const server *srv, const char *line)
{
    if (srv->options->log != NULL) {
        srv->options->log(line, srv->options->user);
    }
}

static void log_address(const server *srv)
{
    char line[320];
    const char *host = srv->options->host;
    bool v6 = strchr(host, ':') != NULL;
    snprintf(line, sizeof line, "%.100s: listening on http://%s%.100s%s:%u", srv->options->model,
             v6 ? "[" : "", host, v6 ? "]" : "", (unsigned)srv->port);
    log_line(srv, line);
}

static bool all_answered(server *srv, unsigned seconds)
{
    uint64_t begin = server_now_ns();
    while (atomic_load(&srv->n_exchanges) > 0) {
        if (server_now_ns() - begin > (uint64_t)seconds * 1000000000) {
            return false;
        }
        poll(NULL, 0, 20);
    }
    return true;
}

/* Shuts down: accepts no new connections and starts no new answers. Answers that have begun may
 * run for another minute; then they end with an error. */
static void drain(server *srv, struct MHD_Daemon *daemon, int listening)
{
    atomic_store(&srv->draining, true);
    server_door_close(&srv->door);
    close(listening);
    log_line(srv, "shutting down: answers that have begun are finished");
    if (!all_answered(srv, SERVER_DRAIN_SECONDS)) {
        log_line(srv, "shutting down: the answers that are left are cut off");
        atomic_store(&srv->giving_up, true);
        all_answered(srv, 2);
    }
    MHD_stop_daemon(daemon);
}

int server_run(moe_engine *engine, const server_options *options, char *error, size_t error_size)
{
    server srv = {.engine = engine,
                  .options = options,
                  .info = {.struct_size = sizeof srv.info},
                  .started = (int64_t)time(NULL),
                  .port = options->port};
    moe_engine_get_info(engine, &srv.info);
    server_memory_open(&srv.memory, options->parallel, srv.info.memory.program);
    int listening = server_listen(options->host, &srv.port, options->n_keys > 0, error, error_size);
    if (listening < 0) {
        return -1;
    }
    server_disk *disk = NULL;
    if (options->cache_folder != NULL &&
        (disk = server_disk_open(engine, options, error, error_size)) == NULL) {
        close(listening);
        return -1;
    }
    server_kept_open(&srv.kept, &srv.memory);
    server_tools_init(&srv.tools);
    server_view_init(&srv.view, engine);
    server_queue_init(&srv.queue, 16 + 2 * (size_t)options->parallel, &srv.memory);
    bool works = server_workshop_start(&srv.workshop, srv.memory.most_work);
    srv.scheduler =
        works ? server_scheduler_start(engine, options->parallel, &srv.queue, disk, &srv.view)
              : NULL;
    const uint32_t most = srv.memory.most_connections;
    works = server_door_open(&srv.door, listening, most, most + SERVER_REFUSED_CONNECTIONS,
                             options->n_keys > 0) &&
            srv.scheduler != NULL;
    struct MHD_Daemon *daemon = works ? server_http_start(&srv) : NULL;
    if (daemon != NULL && !server_door_start(&srv.door, daemon)) {
        MHD_stop_daemon(daemon);
        daemon = NULL;
    }
    if (daemon == NULL) {
        snprintf(error, error_size, "the server's threads cannot be started: %s", strerror(errno));
        server_scheduler_close(&srv.scheduler);
        server_workshop_end(&srv.workshop);
        server_door_free(&srv.door);
        server_queue_free(&srv.queue);
        server_disk_close(&disk);
        server_tools_free(&srv.tools);
        server_view_free(&srv.view);
        server_kept_free(&srv.kept);
        close(listening);
        return -1;
    }
    log_address(&srv);
    while (!options->stopped(options->user)) {
        poll(NULL, 0, 50);
    }
    drain(&srv, daemon, listening);
    server_scheduler_close(&srv.scheduler);
    server_workshop_end(&srv.workshop);
    server_door_free(&srv.door);
    server_queue_free(&srv.queue);
    server_disk_close(&disk);
    server_tools_free(&srv.tools);
    server_view_free(&srv.view);
    server_kept_free(&srv.kept);
    return 0;
}
