/* SPDX-License-Identifier: MIT */
/* Included before everything else in code under simulation: each access to an atomic becomes a
 * scheduling point, and no more than a plain access, since one thread runs all fibers. */
#ifndef MOE_TESTS_POINTS_H
#define MOE_TESTS_POINTS_H

#include <stdatomic.h>

void sim_point(void);

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#define atomic_load(p)                     (sim_point(), *(p))
#define atomic_load_explicit(p, order)     (sim_point(), *(p))
#define atomic_store(p, v)                 (sim_point(), (void)(*(p) = (v)))
#define atomic_store_explicit(p, v, order) (sim_point(), (void)(*(p) = (v)))
#define atomic_fetch_add(p, v)             sim_changed(p, +=, -, v)
#define atomic_fetch_add_explicit(p, v, o) sim_changed(p, +=, -, v)
#define atomic_fetch_sub(p, v)             sim_changed(p, -=, +, v)
#define atomic_fetch_sub_explicit(p, v, o) sim_changed(p, -=, +, v)
/* The value before the change. */
#define sim_changed(p, changes, undoes, v)                                                         \
    __extension__({                                                                                \
        sim_point();                                                                               \
        __auto_type sim_after = (*(p)changes(v));                                                  \
        sim_after undoes(v);                                                                       \
    })

#endif
