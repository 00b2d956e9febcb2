/* SPDX-License-Identifier: MIT */
#ifndef MOE_VERSION_H
#define MOE_VERSION_H

#define MOE_VERSION_MAJOR 0
#define MOE_VERSION_MINOR 1
#define MOE_VERSION_PATCH 0
#define MOE_VERSION_TEXT  "0.1.0"

#endif
