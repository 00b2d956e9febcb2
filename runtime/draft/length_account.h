/* SPDX-License-Identifier: MIT */
/* What speculation may lose: an account in the unit of cost, not in what a token costs at the
 * moment, because the first tokens of a text cost several times the later ones (cold caches), and
 * a debt that was 2 % of those would be more of the whole.
 *
 *   left  =  share * (what plain decoding of all tokens so far would have cost) - losses + gains
 *
 * At any time, and so at the end of any run, speculation has lost at most `share` of plain
 * decoding, and what its last draft cost beyond expectation: a draft is begun where the loss that
 * is expected of it, should it be refused, is left. Gains beyond `most` come back slowly, so that
 * a text on which speculation did well is tried again sooner and a bad one cannot use it up. */
#ifndef MOE_DRAFT_LENGTH_ACCOUNT_H
#define MOE_DRAFT_LENGTH_ACCOUNT_H

#include <stdbool.h>

typedef struct moe_length_account {
    double share;       /* of the cost of plain decoding, that may be lost */
    double more;        /* ... and beyond that, where drafts promise much */
    double left, saved; /* what may be lost now, and gains that are still to come back */
    double plain;       /* what plain decoding would have cost so far */
} moe_length_account;

/* An iteration whose tokens cost `cost`, plain decoding of them `plain_cost`; most of a token's
 * plain cost `unit` (0: not known yet) is kept of gains. */
void moe_length_account_add(moe_length_account *account, double plain_cost, double cost,
                            double unit);
/* What may be lost now. */
double moe_length_account_left(const moe_length_account *account, bool promising, double unit);

#endif
