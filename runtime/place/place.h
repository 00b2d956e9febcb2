/* SPDX-License-Identifier: MIT */
/* Places compute routed experts. Each computes rows of experts whose weights are in its memory,
 * says what rows cost, and works beside the other places between submit() and collect():
 *
 *    device    the device's kernels, on any of its cards; the device may queue them
 *    host      the CPU, on a thread and a team of its own, for experts in host memory
 *
 * The rows come from the device's memory and the results go there, wherever the place is. All
 * places do the experts' arithmetic in the same way, so the bits do not depend on the place. */
#ifndef MOE_PLACE_PLACE_H
#define MOE_PLACE_PLACE_H

#include "runtime/device/device.h"
#include "runtime/place/place_times.h"

/* A job: some experts for one place to compute. */
typedef struct moe_place_job {
    const float *x; /* device, [n_x_rows][n_in], unchanged until collect() */
    uint32_t n_x_rows;
    /* [n_works], read before submit() returns. The memory to which the works point must stay until
     * collect(). */
    const moe_expert_work *works;
    uint32_t n_works;
    float *out; /* device, rows of n_in floats; each work says which rows it writes */
} moe_place_job;

typedef struct moe_place moe_place;

typedef struct moe_place_ops {
    /* Says which rows a job may soon read; the place may begin to fetch them. NULL: the place has
     * no use for it. */
    int (*announce)(moe_place *place, const float *x, uint32_t n_x_rows, moe_error *err);
    /* Begins a job. After collect(), operations find its results in `out`. After an error nothing
     * has begun. */
    int (*submit)(moe_place *place, const moe_place_job *job, moe_error *err);
    /* Ends the submitted job, if there is one. status: the layer's status so far; if it is not
     * MOE_OK, drops the results and returns it. NULL: the place has nothing to end. */
    int (*collect)(moe_place *place, int status, moe_error *err);
    void (*close)(moe_place *place); /* NULL: there is nothing to close */
} moe_place_ops;

/* The first member of every place. */
struct moe_place {
    const moe_place_ops *ops;
    moe_place_times times; /* what rows cost here: moe_place_cost_ns() */
};

static inline int moe_place_announce(moe_place *place, const float *x, uint32_t n_x_rows,
                                     moe_error *err)
{
    return place != NULL && place->ops->announce != NULL
               ? place->ops->announce(place, x, n_x_rows, err)
               : MOE_OK;
}

static inline int moe_place_collect(moe_place *place, int status, moe_error *err)
{
    return place != NULL && place->ops->collect != NULL ? place->ops->collect(place, status, err)
                                                        : status;
}

/* Computes a job, and returns when it is done. */
static inline int moe_place_compute(moe_place *place, const moe_place_job *job, moe_error *err)
{
    int status = place->ops->submit(place, job, err);
    return status != MOE_OK ? status : moe_place_collect(place, MOE_OK, err);
}

static inline void moe_place_close(moe_place **place)
{
    if (*place != NULL) {
        (*place)->ops->close(*place);
    }
    *place = NULL;
}

/* The shape of a model's routed experts. */
typedef struct moe_place_shape {
    uint32_t n_in, n_ff;
    uint32_t n_expert, n_used; /* experts of a layer; experts of a row */
    uint32_t max_rows;
} moe_place_shape;

/* The device as a place. It need not be closed. */
typedef struct moe_device_place {
    moe_place base;
    moe_device *device; /* must outlive the place */
    uint32_t n_in;
    bool timed; /* something asks for this place's cost */
} moe_device_place;

void moe_device_place_init(moe_device_place *place, moe_device *device, uint32_t n_in, bool timed);

typedef struct moe_host_place_options {
    moe_place_shape shape;
    uint32_t n_threads; /* threads of the team */
    unsigned cpu_features;
    moe_device *device; /* has a link; must outlive the place */
    /* Fetches announced rows early, if that is cheaper than waiting for a job. */
    bool announces;
} moe_host_place_options;

int moe_place_open_host(moe_place **out, const moe_host_place_options *options, moe_error *err);
/* Bytes of host memory that the place will take. */
uint64_t moe_place_host_bytes(const moe_place_shape *shape);

#endif
