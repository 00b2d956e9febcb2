/* SPDX-License-Identifier: MIT */
/* How features watch and change passes. A feature fills in a hook and adds it to the runner. The
 * pass calls each stage of all hooks in ascending moe_hook_order, on its own thread:
 *
 *    take_over -> before_pass -> { after_routing -> before_plan -> on_request -> while_loading
 *                  -> compute_beside -> while_waiting ... -> collect_beside -> after_experts } for
 * each layer with experts -> after_pass
 *
 * A stage that a hook does not need is NULL. An error of a stage fails the pass. */
#ifndef MOE_PASS_HOOKS_H
#define MOE_PASS_HOOKS_H

#include "offload/expert_store.h"
#include "runtime/pass/pass.h"

/* Which of two hooks comes first in a stage. */
typedef enum moe_hook_order {
    MOE_HOOK_WATCH,    /* sees passes begin, also those that are taken over */
    MOE_HOOK_RECORDED, /* plays the whole pass on the device */
    MOE_HOOK_REPLAY,   /* puts a recorded routing in place of the routers' */
    MOE_HOOK_NATURAL,  /* computes a layer as the routers chose, to compare with */
    MOE_HOOK_DRAFT,    /* restricts drafts to resident experts; notes the routing of other passes */
    MOE_HOOK_EDIT,     /* changes the routers' choices */
    MOE_HOOK_OVERLAP,  /* asks for the next layer's experts by an oracle */
    MOE_HOOK_OBSERVE,  /* sees the final choice */
    MOE_HOOK_STAND_IN  /* takes experts out of the layer's plan, to compute them by itself */
} moe_hook_order;

/* The kinds of passes that a hook takes part in: a set of these. */
enum {
    MOE_HOOK_ON_EXACT = 1 << MOE_PASS_EXACT,
    MOE_HOOK_ON_LOSSY = 1 << MOE_PASS_LOSSY,
    MOE_HOOK_ON_DRAFT = 1 << MOE_PASS_DRAFT,
    MOE_HOOK_ON_REHEARSAL = 1 << 8, /* also passes that will be run again (moe_pass.rehearses) */
    MOE_HOOK_ON_TARGET = MOE_HOOK_ON_EXACT | MOE_HOOK_ON_LOSSY,
    MOE_HOOK_ON_ALL = MOE_HOOK_ON_TARGET | MOE_HOOK_ON_DRAFT | MOE_HOOK_ON_REHEARSAL
};

/* How a hook computes experts of a panel's block (panel_block.h) by itself. */
typedef struct moe_block_stages {
    /* Called before the experts from entry block->n_served of the plan on are served. Sets
     * block->elsewhere of these entries: whether the hook computes the entry. begins: this is the
     * first call for the block; later ones may only clear it. */
    int (*share)(void *context, moe_runner *runner, const moe_pass *pass, bool begins,
                 moe_error *err);
    /* Writes the outputs of the plan's pairs begin .. begin + n - 1, all of one entry that the hook
     * computes, to block->tile_out. The pass takes such pairs in ascending order, and n is at most
     * a pass's rows. *lost: the outputs do not come; share() is called next. */
    int (*take)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t begin, uint32_t n,
                bool *lost, moe_error *err);
} moe_block_stages;

typedef struct moe_pass_hook moe_pass_hook;
struct moe_pass_hook {
    moe_hook_order order;
    unsigned passes; /* MOE_HOOK_ON_* */
    /* The router's probabilities are written to buffers->router_probs from now on. */
    bool wants_probs;
    /* The host must route the pass layer by layer, so no hook may run the whole pass instead. */
    bool needs_host_routing;
    /* The hook also takes part in panels: there its stages of a layer are called chunk by chunk,
     * without take_over, before_pass and after_pass. If one hook does not set this, passes cannot
     * be panels. In a panel's blocks no stage after after_routing is called. */
    bool takes_panels;
    const moe_block_stages *block_stages; /* NULL: none; at most one hook has these */
    void *context;

    /* Runs the whole pass, logits included, and sets *done. The first hook that does so ends the
     * stage. */
    int (*take_over)(void *context, moe_runner *runner, const moe_pass *pass, bool *done,
                     moe_error *err);
    /* Called before each pass, except drafts. */
    int (*before_pass)(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err);
    /* The routers' choices are in buffers->chosen and chosen_weights, best first, and may be
     * changed. */
    int (*after_routing)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err);
    /* The choices are final, in ascending order of experts. The hook may take experts out by
     * writing MOE_PLAN_NO_EXPERT in their places, if it computes them by itself (compute_beside,
     * collect_beside). */
    int (*before_plan)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                       moe_error *err);
    /* Sees what the layer's plan requests from the store. Not called in drafts, which request
     * nothing. */
    void (*on_request)(void *context, moe_runner *runner, moe_layer_request *request);
    /* The layer's experts are being loaded; its plan is in buffers->plan. Not called in drafts. */
    void (*while_loading)(void *context, moe_runner *runner, uint32_t layer);
    /* Computes the experts that the hook took out in before_plan, while others are loaded. Writes
     * their outputs to the same places of RANK_OUT. Not called in drafts. */
    int (*compute_beside)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                          moe_error *err);
    /* The pass has nothing to compute until an expert arrives, in about expected_ns. The hook may
     * do some other work that takes no longer, and returns true if it did; then it is called again.
     * The hook must not touch the pass's buffers, and must not move any expert. Not called in
     * drafts. */
    bool (*while_waiting)(void *context, moe_runner *runner, uint64_t expected_ns);
    /* All other experts of the layer have been computed. If some of the experts that the hook took
     * out are computed elsewhere, it now puts their outputs in their places of RANK_OUT, before the
     * sum. Not called in drafts. */
    int (*collect_beside)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                          moe_error *err);
    /* The sum of the routed experts is in buffers->branch. */
    int (*after_experts)(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                         moe_error *err);
    /* Called after a pass that succeeded. Not after drafts. */
    int (*after_pass)(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err);

    moe_pass_hook *next; /* set by the runner */
};

/* The hook must stay in place until it is removed. Call between passes only. Of two hooks with the
 * same order the later one is called first. */
int moe_runner_add_hook(moe_runner *runner, moe_pass_hook *hook, moe_error *err);
/* Does nothing if the hook was not added. */
void moe_runner_remove_hook(moe_runner *runner, moe_pass_hook *hook);
/* Whether a hook of this pass needs the host to route it. */
bool moe_pass_needs_host_routing(const moe_runner *runner, const moe_pass *pass);

/* The hook that computes experts of blocks by itself; NULL: there is none. */
const moe_pass_hook *moe_hooks_of_blocks(const moe_runner *runner, const moe_pass *pass);

/* For the pass: each function calls one stage of all hooks that take part in the pass. */
int moe_hooks_take_over(moe_runner *runner, const moe_pass *pass, bool *done, moe_error *err);
int moe_hooks_before_pass(moe_runner *runner, const moe_pass *pass, moe_error *err);
int moe_hooks_after_routing(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err);
int moe_hooks_before_plan(moe_runner *runner, const moe_pass *pass, uint32_t layer, moe_error *err);
void moe_hooks_on_request(moe_runner *runner, const moe_pass *pass, moe_layer_request *request);
void moe_hooks_while_loading(moe_runner *runner, const moe_pass *pass, uint32_t layer);
int moe_hooks_compute_beside(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                             moe_error *err);
int moe_hooks_collect_beside(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                             moe_error *err);
/* True if a hook used some of the wait. */
bool moe_hooks_while_waiting(moe_runner *runner, const moe_pass *pass, uint64_t expected_ns);
int moe_hooks_after_experts(moe_runner *runner, const moe_pass *pass, uint32_t layer,
                            moe_error *err);
int moe_hooks_after_pass(moe_runner *runner, const moe_pass *pass, moe_error *err);

#endif
