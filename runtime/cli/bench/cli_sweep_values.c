/* SPDX-License-Identifier: MIT */
#include "cli_sweep_values.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double cli_number_of(const char *value)
{
    static const char units[] = "KMG";
    char *end;
    double number = strtod(value, &end);
    const char *unit = *end == '\0' ? NULL : strchr(units, toupper((unsigned char)*end));
    if (end == value || !isfinite(number)) {
        return NAN;
    }
    if (unit != NULL && end[1] == '\0') {
        return ldexp(number, 10 * (int)(unit - units + 1));
    }
    return *end == '\0' || strcmp(end, "%") == 0 ? number : NAN;
}

bool cli_is_share(const char *value)
{
    double number = cli_number_of(value);
    return value[strlen(value) - 1] == '%' && number > 0 && number <= 100;
}

bool cli_is_count(const char *value)
{
    double number = cli_number_of(value);
    return strspn(value, "0123456789") == strlen(value) && number >= 1 && number <= 1024;
}

bool cli_is_block(const char *value)
{
    double number = cli_number_of(value);
    return value[strlen(value) - 1] != '%' && number >= 4096 && number <= 64 << 20 &&
           fmod(number, 4096) == 0;
}
