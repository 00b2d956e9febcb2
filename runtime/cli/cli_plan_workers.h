/* SPDX-License-Identifier: MIT */
/* What plan says of workers. */
#ifndef CLI_PLAN_WORKERS_H
#define CLI_PLAN_WORKERS_H

#include <moe/workers.h>

#include "cli_workers.h"

struct json_object;

/* What was learned of the workers. */
typedef struct cli_plan_workers {
    moe_worker_estimate estimate;
    const moe_memory_plan *plan;
    moe_worker_info list[CLI_MOST_WORKERS];
    char *experts[CLI_MOST_WORKERS]; /* as --experts lists them; NULL: not known */
    uint32_t n;
} cli_plan_workers;

/* Asks the workers; returns an exit code. Free the result. */
int cli_plan_workers_ask(cli_plan_workers *workers, const moe_engine_options *engine_options,
                         const moe_memory_plan *plan, const moe_speed_rates *rates);
void cli_plan_workers_free(cli_plan_workers *workers);
void cli_plan_workers_print(const cli_plan_workers *workers);
void cli_plan_workers_put(struct json_object *object, const cli_plan_workers *workers);

#endif
