/* SPDX-License-Identifier: MIT */
#include "runtime/draft/length_account.h"

/* In multiples of a token's current plain cost. */
#define MOST       10.0
#define MOST_MORE  1.0
#define MOST_SAVED 100.0
#define COMES_BACK 0.02 /* share of past gains that returns in each iteration */

#define SHARE 0.004
#define MORE  0.002

void moe_length_account_init(moe_length_account *a)
{
    *a = (moe_length_account){.share = SHARE, .more = MORE};
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

void moe_length_account_add(moe_length_account *a, double plain_cost, double cost, double unit)
{
    double back = least(a->saved, COMES_BACK * unit);
    a->saved -= back;
    a->plain += plain_cost;
    a->left += plain_cost - cost + a->share * plain_cost + back;
    if (unit > 0 && a->left > MOST * unit) {
        a->saved = least(a->saved + a->left - MOST * unit, MOST_SAVED * unit);
        a->left = MOST * unit;
    }
}

double moe_length_account_granted(const moe_length_account *a)
{
    return a->share * a->plain;
}

double moe_length_account_left(const moe_length_account *a, bool promising, double unit)
{
    return a->left + (promising ? least(a->more * a->plain, MOST_MORE * unit) : 0);
}
