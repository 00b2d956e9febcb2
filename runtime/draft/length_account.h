/* SPDX-License-Identifier: MIT */
/* The account of what speculation may lose. Its unit is cost, not the current cost of a token: the
 * first tokens of a text cost several times as much as later ones (cold caches), and a debt of 2 %
 * in tokens of that kind would be more than 2 % of the whole.
 *
 *  left  =  share * (what plain decoding of all tokens so far would have cost) - losses + gains
 *
 * At any time, and so at the end of any run, speculation has lost at most `share` of plain
 * decoding, plus what its last draft cost beyond expectation: a draft is begun only if its expected
 * loss, should it be rejected, is left. Gains beyond `most` return slowly, so that a text on which
 * speculation did well is tried again sooner and a bad one cannot use them up. */
#ifndef MOE_DRAFT_LENGTH_ACCOUNT_H
#define MOE_DRAFT_LENGTH_ACCOUNT_H

#include <stdbool.h>

typedef struct moe_length_account {
    double share;       /* of the cost of plain decoding that may be lost */
    double more;        /* ... added to it if drafts promise much */
    double left, saved; /* may be lost now; gains that have still to return */
    double plain;       /* cost of plain decoding so far */
} moe_length_account;

/* With the shares that length control has: of 2 % that speculation may cost at any time. */
void moe_length_account_init(moe_length_account *account);
/* Books an iteration whose tokens cost `cost`, and would have cost `plain_cost` by plain decoding.
 * unit: a token's plain cost (0: not known yet), which limits the gains that are kept. */
void moe_length_account_add(moe_length_account *account, double plain_cost, double cost,
                            double unit);
/* What the share alone has come to so far. */
double moe_length_account_granted(const moe_length_account *account);
/* What may be lost now. */
double moe_length_account_left(const moe_length_account *account, bool promising, double unit);

#endif
